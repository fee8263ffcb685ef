"""What a worker says of itself: who it is, what it may do, how busy it is."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

WorkerId = NewType("WorkerId", str)


class WorkerRole(StrEnum):
    """Which phase of a request a worker takes; BOTH is colocated service."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """A snapshot; counts are requests unless the name says tokens or blocks."""

    num_running: int = 0
    num_waiting: int = 0
    num_waiting_prefill_tokens: int = 0  # prompt tokens not computed yet, running or waiting
    num_used_blocks: int = 0
    num_total_blocks: int = 0

    @property
    def kv_usage(self) -> float:
        """The share of KV blocks that running requests hold, 0 to 1."""
        return self.num_used_blocks / self.num_total_blocks if self.num_total_blocks else 0.0
