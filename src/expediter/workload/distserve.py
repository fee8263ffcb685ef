"""The workloads of DistServe's evaluation (OSDI'24, section 6.1), from what is published of them.

Its lengths are in Figure 7 as histograms only. These have about the means that are quoted for it
(prompt / answer 755 / 200 for ShareGPT, 171 / 98 for HumanEval, 1,738 / 91 for LongBench) and the
cuts of its scripts (a context of 2,048 tokens); the spread is ours. Nothing is shared between
prompts: the system has no prefix cache.
"""

from expediter.workload.distributions import Lognormal, Normal
from expediter.workload.shared_prefix import SharedPrefix

SHAREGPT = SharedPrefix(
    name="sharegpt",
    levels=(),
    question_tokens=Lognormal(1250, 1400, maximum=1848),
    answer_tokens=Lognormal(220, 240, maximum=1024),
)
"""Conversations: broad in both lengths."""

HUMANEVAL = SharedPrefix(
    name="humaneval",
    levels=(),
    question_tokens=Lognormal(171, 80, maximum=512),
    answer_tokens=Lognormal(98, 60, maximum=512),
)
"""Completion of code: short in both."""

LONGBENCH = SharedPrefix(
    name="longbench",
    levels=(),
    question_tokens=Normal(1738, 150),
    answer_tokens=Lognormal(97, 75, maximum=400),
)
"""Summaries of long texts."""
