"""How long prompts wait at one prefill instance, by formula (DistServe, OSDI'24, section 3.1).

Prompts of equal length come at random (Poisson, R a second) and are served one by one, each in D
seconds: an M/D/1 queue. Two GPUs may split the layers (inter-operator: a pipeline, two prompts at
once) or every layer (intra-operator: K times as fast, 1 < K < 2 for what is lost between them).
"""

import math


def mean_ttft(rate: float, seconds: float) -> float:
    """D + R D^2 / (2 (1 - R D)); infinite where the queue grows without end."""
    load = rate * seconds
    return seconds + rate * seconds**2 / (2 * (1 - load)) if load < 1 else math.inf


def mean_ttft_two_stages(rate: float, seconds: float) -> float:
    """D + R D^2 / (4 (2 - R D)): each stage takes D / 2."""
    load = rate * seconds
    return seconds + rate * seconds**2 / (4 * (2 - load)) if load < 2 else math.inf


def mean_ttft_two_ways(rate: float, seconds: float, *, speedup: float) -> float:
    """D / K + R D^2 / (2 K (K - R D)): a single queue with passes of D / K."""
    load = rate * seconds
    if load >= speedup:
        return math.inf
    return seconds / speedup + rate * seconds**2 / (2 * speedup * (speedup - load))
