"""Preble's five workloads, from what its paper says of them (Table 1).

The data sets themselves are not needed: a prompt is a system prompt that all share, the key
portion that a group of requests shares, and a rest of its own. The table's "shared prefix"
counts what an earlier request had, so the first request of a group has only the system prompt;
with n requests a group and a key of share k that makes

    shared = system + k * (1 - 1 / n)

which gives the system prompt's share. For VideoQA and LooGLE, where the key portion is larger
than the shared prefix, this is what makes the table's own numbers agree.
"""

import math
from typing import NamedTuple

from expediter.workload.distributions import Constant, Deck, Lognormal, Popularity, Zipf
from expediter.workload.shared_prefix import Level, SharedPrefix


class Spread(NamedTuple):
    """A mean and a standard deviation."""

    mean: float
    sd: float


class Statistics(NamedTuple):
    """A row of the table: tokens, shares of the prompt, requests."""

    prompt: Spread
    output: Spread
    shared_prefix: Spread
    key_portion: Spread
    num_sharing: Spread


TABLE = {
    "toolbench": Statistics(
        prompt=Spread(1835, 742),
        output=Spread(43, 16),
        shared_prefix=Spread(0.85, 0.13),
        key_portion=Spread(0.76, 0.16),
        num_sharing=Spread(39, 64),
    ),
    "embodied-agent": Statistics(
        prompt=Spread(2285, 471),
        output=Spread(16, 13),
        shared_prefix=Spread(0.97, 0.14),
        key_portion=Spread(0.76, 0.12),
        num_sharing=Spread(48, 8),
    ),
    "programming": Statistics(
        prompt=Spread(3871, 1656),
        output=Spread(190, 343),
        shared_prefix=Spread(0.97, 0.074),
        key_portion=Spread(0.78, 0.13),
        num_sharing=Spread(126, 2157),
    ),
    "video-qa": Statistics(
        prompt=Spread(9865, 5976),
        output=Spread(4, 1.5),
        shared_prefix=Spread(0.88, 0.32),
        key_portion=Spread(0.99, 0.002),
        num_sharing=Spread(8.6, 2),
    ),
    "loogle": Statistics(
        prompt=Spread(23_474, 6105),
        output=Spread(16, 9.9),
        shared_prefix=Spread(0.91, 0.24),
        key_portion=Spread(0.94, 0.15),
        num_sharing=Spread(18, 8.6),
    ),
}


def preble(name: str, *, keys: Popularity | None = None) -> SharedPrefix:
    """The workload `name` of `TABLE`.

    By default each key portion is asked for as often as the table says, whatever the length of
    the run. The paper's other settings are `even_keys` and `zipf_keys`, from a given number.
    """
    row = TABLE[name]
    key_share = row.key_portion.mean
    system_share = row.shared_prefix.mean - key_share * (1 - 1 / row.num_sharing.mean)
    own = row.prompt.mean * (1 - key_share - system_share)
    key_sd = math.sqrt(row.prompt.sd**2 - own**2)
    return SharedPrefix(
        name=name,
        levels=(
            Level(texts=Zipf(1), tokens=Constant(row.prompt.mean * system_share)),
            Level(
                texts=keys or Deck(200, *row.num_sharing),
                tokens=Lognormal(row.prompt.mean * key_share, key_sd),
            ),
        ),
        question_tokens=Lognormal(own, own),
        answer_tokens=Lognormal(*row.output),
    )


def even_keys(num_keys: int, *, num_requests: int) -> Deck:
    """The same number of requests for each key, shuffled: the released benchmark's even load."""
    return Deck(num_keys, max(1, num_requests // num_keys))


def zipf_keys(num_keys: int) -> Zipf:
    """The released benchmark's skewed load."""
    return Zipf(num_keys, 1.1)
