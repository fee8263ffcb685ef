"""What a policy did: hits, balance, and how long first tokens took behind a queue.

Each replica prefills one prompt after another, 0.1 ms for each token that it has not cached (the
worked examples' cost). Time to first token is the wait for those before it, and its own prefill.
Decoding takes no time from prefill here; where it does, the simulator tells.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from expediter.lab.traffic import WARM_UP, Setting, Traffic

PREFILL_SECONDS = 1e-4  # a token
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of the requests after the warm-up. `busy` is the busiest replica's share of time at work.

    At a share of 1 its queue grows for as long as requests come: times to first token then say
    only how long the run was.
    """

    policy: str
    hit_rate: float
    imbalance: float  # max / mean of `computed`
    computed: list[int]  # prompt tokens, by replica
    ttft_p50: float  # seconds
    ttft_p95: float
    busy: float


def outcome(
    policy: str,
    *,
    setting: Setting,
    traffic: Traffic,
    routes: Sequence[int],
    missed: Sequence[int],
) -> Outcome:
    """From each request's replica and the tokens it had to compute."""
    where, tokens = np.asarray(routes), np.asarray(missed, dtype=np.float64)
    arrivals = np.asarray(traffic.unit_times) / setting.rate
    computed = np.bincount(where[WARM_UP:], tokens[WARM_UP:], setting.num_replicas)
    total = float(computed.sum())
    p50, p95 = np.quantile(_first_tokens(arrivals, where, tokens)[WARM_UP:], (0.5, 0.95))
    return Outcome(
        policy=policy,
        hit_rate=1 - total / traffic.num_counted_tokens,
        imbalance=float(computed.max()) * setting.num_replicas / total,
        computed=[int(count) for count in computed],
        ttft_p50=float(p50),
        ttft_p95=float(p95),
        busy=float(computed.max()) * PREFILL_SECONDS / float(arrivals[-1] - arrivals[WARM_UP]),
    )


def _first_tokens(arrivals: Floats, where: npt.NDArray[np.int_], tokens: Floats) -> Floats:
    """Seconds from arrival to first token.

    Lindley's recursion, end = max(arrival, end before) + work, is a running maximum once the sum
    of all work so far is taken off both sides.
    """
    seconds = np.empty_like(arrivals)
    for replica in np.unique(where):
        own = np.flatnonzero(where == replica)
        work = tokens[own] * PREFILL_SECONDS
        done = np.cumsum(work)
        ends = np.maximum.accumulate(arrivals[own] - (done - work)) + done
        seconds[own] = ends - arrivals[own]
    return seconds
