"""Caches of a whole fleet, in the two forms of the demo.

*Published*: whole entries, found by their conversation, so a history that begins again still
hits. *Blocks*: what requests really share. A history that begins again is new text, blocks are
dropped one by one, and a turn's last blocks before its first.

Every length in the demo but the new message's is a multiple of 500 tokens, and that message is
never shared, so blocks of 500 are as exact as small ones.
"""

from collections import OrderedDict
from functools import cached_property
from typing import Literal, Protocol

from expediter.lab.demo import Entries
from expediter.lab.traffic import SYSTEM_TOKENS, TURN_TOKENS, Setting, Traffic, draw
from expediter.routing.prompt import BlockKey, num_held

BLOCK_TOKENS = 500
Form = Literal["published", "blocks"]
Keys = list[BlockKey]


class FleetCaches(Protocol):
    """What replicas hold; requests are named by their number in the traffic."""

    def keys(self, number: int) -> Keys:
        """The names of the prompt's full blocks."""
        ...

    def matches(self, number: int) -> list[int]:
        """Tokens of the prompt that each replica holds."""
        ...

    def take(self, number: int, replica: int) -> Keys:
        """Keep the turn at a replica; returns the names of the blocks that had to go."""
        ...


class Names:
    """Block names for the demo's texts; `restarts` says whether what begins again is new."""

    def __init__(self, setting: Setting, *, restarts: bool) -> None:
        self._setting = setting
        self._traffic = draw(setting)
        self._restarts = restarts
        self._chains: dict[tuple[int, int], Keys] = {}

    @cached_property
    def systems(self) -> list[Keys]:
        """The names of each system prompt's blocks."""
        return [
            _named(f"system {number}", SYSTEM_TOKENS // BLOCK_TOKENS)
            for number in range(self._setting.num_systems)
        ]

    def system(self, who: int) -> Keys:
        """Those of a conversation's system prompt."""
        return self.systems[who % self._setting.num_systems]

    def history(self, number: int, num_tokens: int) -> Keys:
        """The names of the first blocks of a request's conversation."""
        who = self._traffic.conversations[number]
        key = who, self._traffic.num_restarts[number] if self._restarts else 0
        chain = self._chains.setdefault(key, [])
        for index in range(len(chain), num_tokens // BLOCK_TOKENS):
            chain.append(BlockKey(b"%d %d %d" % (*key, index)))
        return chain[: num_tokens // BLOCK_TOKENS]

    def known(self, who: int) -> Keys:
        """All names so far of a conversation that never begins again."""
        return self._chains.get((who, 0), [])

    def prompt(self, number: int, *, answered: bool = False) -> Keys:
        """A prompt's blocks, or with `answered` those of the whole turn."""
        num_tokens = self._traffic.histories[number] + (TURN_TOKENS if answered else 0)
        who = self._traffic.conversations[number]
        return self.system(who) + self.history(number, num_tokens)


class PublishedCaches:
    """`Entries` for each replica."""

    def __init__(self, setting: Setting) -> None:
        self._traffic: Traffic = draw(setting)
        self._names = Names(setting, restarts=False)
        self._num_systems = setting.num_systems
        self._replicas = [Entries(setting.capacity) for _ in range(setting.num_replicas)]

    def keys(self, number: int) -> Keys:
        """See `FleetCaches`."""
        return self._names.prompt(number)

    def matches(self, number: int) -> list[int]:
        """See `FleetCaches`."""
        turn = self._turn(number)
        return [replica.matched(*turn) for replica in self._replicas]

    def take(self, number: int, replica: int) -> Keys:
        """See `FleetCaches`; an entry that had to go is named by all blocks it could have had."""
        gone: list[int] = []
        self._replicas[replica].visit(*self._turn(number), gone)
        return [key for name in gone for key in self._blocks(name)]

    def _turn(self, number: int) -> tuple[int, int, int]:
        who = self._traffic.conversations[number]
        return who, -1 - who % self._num_systems, self._traffic.histories[number]

    def _blocks(self, name: int) -> Keys:
        if name < 0:
            return self._names.systems[-1 - name]
        return self._names.known(name)


class BlockCaches:
    """An LRU of blocks for each replica; a turn's first block counts as used last."""

    def __init__(self, setting: Setting) -> None:
        self._names = Names(setting, restarts=True)
        self._size = setting.capacity // BLOCK_TOKENS
        self._replicas: list[OrderedDict[BlockKey, None]] = [
            OrderedDict() for _ in range(setting.num_replicas)
        ]

    def keys(self, number: int) -> Keys:
        """See `FleetCaches`."""
        return self._names.prompt(number)

    def matches(self, number: int) -> list[int]:
        """See `FleetCaches`."""
        keys = self.keys(number)
        return [num_held(keys, blocks) * BLOCK_TOKENS for blocks in self._replicas]

    def take(self, number: int, replica: int) -> Keys:
        """See `FleetCaches`."""
        blocks = self._replicas[replica]
        for key in reversed(self._names.prompt(number, answered=True)):
            blocks[key] = None
            blocks.move_to_end(key)
        return [blocks.popitem(last=False)[0] for _ in range(len(blocks) - self._size)]


def fleet_caches(form: Form, setting: Setting) -> FleetCaches:
    """Empty ones."""
    return PublishedCaches(setting) if form == "published" else BlockCaches(setting)


def _named(text: str, count: int) -> Keys:
    return [BlockKey(f"{text} {index}".encode()) for index in range(count)]
