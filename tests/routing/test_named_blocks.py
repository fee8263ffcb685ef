"""Names that are their own keys: what two workers hold in one table, against sets."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.kvcache.events import BlockStored
from expediter.routing import named_blocks
from expediter.routing.named_blocks import NamedBlocks

if TYPE_CHECKING:
    from expediter.routing.holders import Holders

names = st.lists(st.sampled_from([bytes([number]) for number in range(1, 8)]), max_size=4)
operations = st.lists(
    st.tuples(st.sampled_from(["store", "remove", "clear"]), st.booleans(), names)
)


def stored(block_hashes: list[bytes], *, parent: bytes | None = None) -> BlockStored:
    return BlockStored(
        block_hashes=block_hashes, parent_block_hash=parent, token_ids=(), block_size=16
    )


@pytest.mark.parametrize("min_listed", [0, 4096])
@given(operations)
def test_the_table_says_who_holds_what(
    min_listed: int, steps: list[tuple[str, bool, list[bytes]]]
) -> None:
    holders: Holders = {}
    workers = [NamedBlocks(1), NamedBlocks(2)]
    oracle: list[set[bytes]] = [set(), set()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(named_blocks, "_MIN_LISTED", min_listed)
        for operation, is_second, given_names in steps:
            worker, held = workers[is_second], oracle[is_second]
            match operation:
                case "store":
                    assert worker.store(holders, stored(given_names))
                    held.update(given_names)
                case "remove":
                    known = [name for name in dict.fromkeys(given_names) if name in held]
                    assert worker.remove(holders, given_names) == known
                    held.difference_update(given_names)
                case _:
                    worker.clear(holders)
                    held.clear()
            assert holders == {
                name: (name in oracle[0]) + 2 * (name in oracle[1]) for name in set.union(*oracle)
            }
            assert [len(worker) for worker in workers] == [len(held) for held in oracle]


def test_a_child_of_an_unknown_block_is_not_stored() -> None:
    holders: Holders = {}
    worker, other = NamedBlocks(1), NamedBlocks(2)
    assert other.store(holders, stored([b"a"]))
    assert not worker.store(holders, stored([b"b"], parent=b"a"))
    assert other.store(holders, stored([b"b"], parent=b"a"))
    assert (holders, len(worker)) == ({b"a": 2, b"b": 2}, 0)


def test_names_that_were_removed_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_blocks, "_MIN_LISTED", 10)
    holders: Holders = {}
    worker = NamedBlocks(1)
    for number in range(1000):
        name = number.to_bytes(2, "big")
        worker.store(holders, stored([name]))
        if number:
            worker.remove(holders, [(number - 1).to_bytes(2, "big")])
        assert sum(map(len, worker._listed)) <= 14
    assert len(worker) == len(holders) == 1
