"""The published routing demo, fast enough to be played with: five policies in a tenth of a second.

A replica keeps whole entries, one a system prompt and one a conversation, and drops the least
recently used. A hit is the system prompt and what the entry has of the history; without the
system prompt nothing hits. An entry is found by its conversation alone, so hits survive a history
that begins again; `caches.py` has the form in which they do not.

`cache-aware` takes the longest match among replicas whose load is at most 1.2 times the mean,
equals to the least loaded. Load is what was computed there of the last 500 requests.

It is fast because policies share one draw of the traffic; because where three of them send a
request depends on nothing; and because the guarded ones ask an index from conversation to the
replicas that hold it, which are few, instead of asking every replica.
"""

import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from expediter.lab.outcome import Outcome, outcome
from expediter.lab.traffic import NEW_TOKENS, SYSTEM_TOKENS, TURN_TOKENS, Setting, Traffic, draw

LOAD_WINDOW = 500  # requests
GUARD, NO_GUARD = 1.2, 1e9
FAST_POLICIES = ("random", "round-robin", "sticky", "cache-aware", "longest-match")


def compare(setting: Setting) -> list[Outcome]:
    """All five on the same requests, in the order of `FAST_POLICIES`."""
    traffic = draw(setting)
    found = []
    for policy, routes in fixed_routes(setting, traffic).items():
        missed = replay(setting, traffic, routes)
        found.append(_outcome(policy, setting, traffic, routes, missed))
    for policy, guard in (("cache-aware", GUARD), ("longest-match", NO_GUARD)):
        routes, missed = guarded(setting, traffic, guard=guard)
        found.append(_outcome(policy, setting, traffic, routes, missed))
    return found


def fixed_routes(setting: Setting, traffic: Traffic) -> Mapping[str, list[int]]:
    """Where policies that look at nothing send each request."""
    num, size = setting.num_replicas, len(traffic.conversations)
    return {
        "random": random.Random(f"routes {setting.seed}").choices(range(num), k=size),
        "round-robin": [number % num for number in range(size)],
        "sticky": [who % num for who in traffic.conversations],
    }


class Entries:
    """One replica's cache. Conversations are named from 0 on, system prompts from -1 down."""

    __slots__ = ("_capacity", "_num_tokens", "lengths")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.lengths: OrderedDict[int, int] = OrderedDict()
        self._num_tokens = 0

    def matched(self, who: int, system: int, history: int) -> int:
        """Tokens of a prompt that are here."""
        if system not in self.lengths:
            return 0
        return SYSTEM_TOKENS + min(self.lengths.get(who, 0), history)

    def visit(self, who: int, system: int, history: int, gone: list[int]) -> int:
        """Serve a turn and keep it: what had matched; `gone` gets the names that had to go."""
        lengths, matched = self.lengths, 0
        before, after = lengths.get(who, 0), history + TURN_TOKENS
        num_tokens = self._num_tokens + after - before
        lengths[who] = after
        if before:
            lengths.move_to_end(who)
        if system in lengths:
            matched = SYSTEM_TOKENS + min(history, before)
            lengths.move_to_end(system)
        else:
            lengths[system] = SYSTEM_TOKENS
            num_tokens += SYSTEM_TOKENS
        while num_tokens > self._capacity:
            name, length = lengths.popitem(last=False)
            num_tokens -= length
            gone.append(name)
        self._num_tokens = num_tokens
        return matched


def replay(setting: Setting, traffic: Traffic, routes: Sequence[int]) -> list[int]:
    """The tokens that each request has to compute where it is sent."""
    visits = [Entries(setting.capacity).visit for _ in range(setting.num_replicas)]
    systems = [-1 - who % setting.num_systems for who in range(setting.num_conversations)]
    gone: list[int] = []
    return [
        SYSTEM_TOKENS + history + NEW_TOKENS - visits[route](who, systems[who], history, gone)
        for who, history, route in zip(
            traffic.conversations, traffic.histories, routes, strict=True
        )
    ]


def guarded(setting: Setting, traffic: Traffic, *, guard: float) -> tuple[list[int], list[int]]:
    """Routes and computed tokens: the longest match under a guard, then the least loaded."""
    num, systems = setting.num_replicas, setting.num_systems
    replicas = [Entries(setting.capacity) for _ in range(num)]
    caches = [replica.lengths for replica in replicas]
    holders: list[set[int]] = [set() for _ in range(setting.num_conversations)]
    loads, total = [0] * num, 0
    routes: list[int] = []
    missed: list[int] = []
    for who, history in zip(traffic.conversations, traffic.histories, strict=True):
        system, limit, held = -1 - who % systems, guard * total / num, holders[who]
        ranked = [
            (-min(caches[i][who], history), loads[i], i)
            for i in held
            if loads[i] <= limit and system in caches[i]
        ]
        if ranked:
            chosen = min(ranked)[2]
        else:
            # Nobody who may take it holds the history: a system prompt is all that can match.
            chosen = loads.index(min(loads))
            if system not in caches[chosen]:
                others = [i for i in range(num) if loads[i] <= limit and system in caches[i]]
                chosen = min(others, key=loads.__getitem__, default=chosen)
        gone: list[int] = []
        matched = replicas[chosen].visit(who, system, history, gone)
        held.add(chosen)
        for name in gone:
            if name >= 0:
                holders[name].discard(chosen)
        computed = SYSTEM_TOKENS + history + NEW_TOKENS - matched
        routes.append(chosen)
        missed.append(computed)
        loads[chosen] += computed
        total += computed
        if len(missed) > LOAD_WINDOW:
            left = missed[-1 - LOAD_WINDOW]
            loads[routes[-1 - LOAD_WINDOW]] -= left
            total -= left
    return routes, missed


def _outcome(
    policy: str, setting: Setting, traffic: Traffic, routes: list[int], missed: list[int]
) -> Outcome:
    return outcome(policy, setting=setting, traffic=traffic, routes=routes, missed=missed)
