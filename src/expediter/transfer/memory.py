"""A pool's bytes, mapped: our own to hand out, or another process's to read.

A pool is a memfd: anonymous memory that other processes of the user may map through /proc, that
is zero and unallocated until written, and that the kernel frees when the last holder closes it
or dies. Nothing has a name, so nothing is left behind; and who has mapped a pool can read it to
the end even if its owner dies.
"""

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from expediter.errors import TransferError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PoolMemory:
    """Mapped bytes. The mapping lasts as long as anything made from `buffer` or `array` does."""

    def __init__(self, fd: int, num_bytes: int, *, path: str) -> None:
        """Takes over `fd`; `path` is how other processes of the same user open the same bytes."""
        self.path = path
        self.buffer = mmap.mmap(fd, num_bytes)
        self.array: NDArray[np.uint8] = np.frombuffer(self.buffer, np.uint8)
        self._fd = fd

    @classmethod
    def create(cls, num_bytes: int) -> "PoolMemory":
        """New memory, all zero."""
        fd = os.memfd_create("expediter-kv", os.MFD_CLOEXEC)
        os.ftruncate(fd, num_bytes)
        return cls(fd, num_bytes, path=f"/proc/{os.getpid()}/fd/{fd}")

    @classmethod
    def open(cls, path: str, num_bytes: int) -> "PoolMemory":
        """Another process's pool; TransferError if it cannot be mapped or is too small."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise TransferError(f"the pool {path} cannot be opened: {error.strerror}") from error
        if os.fstat(fd).st_size < num_bytes:
            os.close(fd)
            raise TransferError(f"the pool {path} is smaller than the {num_bytes} bytes promised")
        return cls(fd, num_bytes, path=path)

    @property
    def address(self) -> int:
        """Where the first byte is in this process."""
        return self.array.ctypes.data

    def close(self) -> None:
        """Let go of the memory; nothing may be read or written afterwards. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.array = np.empty(0, np.uint8)
            del self.buffer


def can_be_shared() -> bool:
    """Whether this system has memory that can be mapped by its path."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()
