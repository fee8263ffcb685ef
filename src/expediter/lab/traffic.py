"""The chat traffic of the routing demo: who comes when, with how long a history.

Each request draws a conversation by a Zipf law. Its prompt is the conversation's system prompt,
its history and 300 new tokens. A history grows by 500 tokens a visit, and begins again at 500
once it is above 20,000. Arrivals are Poisson, and the same ones at every rate, only faster.
"""

import random
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

SYSTEM_TOKENS, NEW_TOKENS, TURN_TOKENS, MAX_HISTORY = 2000, 300, 500, 20_000
ANSWER_TOKENS = TURN_TOKENS - NEW_TOKENS
NUM_REQUESTS, WARM_UP = 20_000, 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the sliders say; the defaults are those of the published demo, but for `rate`."""

    num_replicas: int = 8
    capacity: int = 400_000  # tokens a replica
    num_conversations: int = 500
    skew: float = 1.0
    num_systems: int = 4
    rate: float = 10.0  # requests a second
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One entry a request; `num_restarts` says how often its history has begun again."""

    conversations: list[int]
    histories: list[int]
    num_restarts: list[int]
    unit_times: list[float]  # at one request a second

    @property
    def num_counted_tokens(self) -> int:
        """Prompt tokens of the requests after the warm-up."""
        counted = self.histories[WARM_UP:]
        return sum(counted) + len(counted) * (SYSTEM_TOKENS + NEW_TOKENS)


def draw(setting: Setting) -> Traffic:
    """The same for all policies, replicas, caches, system prompts and rates."""
    return _draw(setting.num_conversations, setting.skew, setting.seed)


@lru_cache(maxsize=16)
def _draw(num_conversations: int, skew: float, seed: int) -> Traffic:
    weights = list(accumulate((i + 1) ** -skew for i in range(num_conversations)))
    drawn = random.Random(seed).choices(
        range(num_conversations), cum_weights=weights, k=NUM_REQUESTS
    )
    current = [TURN_TOKENS] * num_conversations
    restarts = [0] * num_conversations
    histories, num_restarts = [], []
    for who in drawn:
        history = current[who]
        histories.append(history)
        num_restarts.append(restarts[who])
        if history + TURN_TOKENS <= MAX_HISTORY:
            current[who] = history + TURN_TOKENS
        else:
            current[who] = TURN_TOKENS
            restarts[who] += 1
    gaps = random.Random(f"arrivals {seed}")
    return Traffic(
        conversations=drawn,
        histories=histories,
        num_restarts=num_restarts,
        unit_times=list(accumulate(gaps.expovariate(1.0) for _ in drawn)),
    )
