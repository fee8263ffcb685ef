"""Chat traffic on replicas with small caches, as simple as can be: an oracle for policies.

Each request draws a conversation by a Zipf law. Its prompt is one of four system prompts, the
conversation's history and 300 new tokens. Histories grow by 500 tokens a visit, and begin again
at 500 once they are above 20,000. A replica keeps whole entries, one a system prompt and one a
conversation, and drops the least recently used. Hit rate is matched over prompt tokens, imbalance
the most over the mean of the tokens computed; both leave out the first 5,000 requests.
"""

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

SYSTEM_TOKENS, NEW_TOKENS, TURN_TOKENS, MAX_HISTORY = 2000, 300, 500, 20_000
NUM_REQUESTS, WARM_UP = 20_000, 5_000
LOAD_WINDOW = 500  # requests

Place = Callable[[int, Sequence[int], Sequence[float]], int]
"""From the conversation, each replica's match and recent load to the replica's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    num_replicas: int = 8
    capacity: int = 400_000  # tokens a replica
    num_conversations: int = 500
    skew: float = 1.0


class Replica:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[int, int] = OrderedDict()
        self._num_tokens = 0

    def matched(self, conversation: int, history: int) -> int:
        if _system(conversation) not in self._entries:
            return 0
        return SYSTEM_TOKENS + min(self._entries.get(conversation, 0), history)

    def take(self, conversation: int, history: int) -> None:
        self._put(conversation, history + TURN_TOKENS)
        self._put(_system(conversation), SYSTEM_TOKENS)
        while self._num_tokens > self._capacity:
            self._num_tokens -= self._entries.popitem(last=False)[1]

    def _put(self, key: int, num_tokens: int) -> None:
        self._num_tokens += num_tokens - self._entries.get(key, 0)
        self._entries[key] = num_tokens
        self._entries.move_to_end(key)


def next_history(history: int) -> int:
    """A visit later."""
    return history + TURN_TOKENS if history + TURN_TOKENS <= MAX_HISTORY else TURN_TOKENS


def _system(conversation: int) -> int:
    return -1 - conversation % 4


def simulate(place: Place, setting: Setting, *, seed: int) -> tuple[float, float]:
    """Hit rate and imbalance."""
    rng, num_replicas = random.Random(seed), setting.num_replicas
    weights = accumulate((i + 1) ** -setting.skew for i in range(setting.num_conversations))
    drawn = rng.choices(range(setting.num_conversations), cum_weights=list(weights), k=NUM_REQUESTS)
    replicas = [Replica(setting.capacity) for _ in range(num_replicas)]
    histories = [TURN_TOKENS] * setting.num_conversations
    recent: deque[tuple[int, int]] = deque()
    loads, computed = [0.0] * num_replicas, [0] * num_replicas
    num_hit = num_all = 0
    for i, conversation in enumerate(drawn):
        history = histories[conversation]
        matches = [replica.matched(conversation, history) for replica in replicas]
        chosen = place(conversation, matches, loads)
        replicas[chosen].take(conversation, history)
        num_tokens = SYSTEM_TOKENS + history + NEW_TOKENS
        missed = num_tokens - matches[chosen]
        recent.append((chosen, missed))
        loads[chosen] += missed
        if len(recent) > LOAD_WINDOW:
            oldest, left = recent.popleft()
            loads[oldest] -= left
        histories[conversation] = next_history(history)
        if i >= WARM_UP:
            num_hit += matches[chosen]
            num_all += num_tokens
            computed[chosen] += missed
    return num_hit / num_all, max(computed) * num_replicas / sum(computed)
