"""Consistent hashing: each key has a worker, and few keys move when workers come or go.

Every worker owns many points on a ring of 64-bit hashes. A key belongs to the first point at
or after its own hash, so a new worker takes about 1/(N+1) of the keys, all for itself, and the
keys of one that leaves go to their next points; no other key moves. The ring is a sorted array
and a look-up one bisection.

With bounded loads (Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads",
SODA 2018, section 2) a key whose worker is full goes on to the next point whose worker is not:

    capacity = ceil((1 + eps) * (m + 1) / n)      m requests in flight, n workers, one more comes

There is always such a worker, because all of them full would be more than m requests.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator

import xxhash

from expediter.load import WorkerId


class HashRing:
    """Workers on a ring. `num_points` a worker: the more, the more even their shares."""

    def __init__(self, *, num_points: int) -> None:
        """Shares differ from the mean by about 1/sqrt(num_points) of it."""
        self._num_points = num_points
        self._workers: set[WorkerId] = set()
        self._hashes: list[int] = []
        self._owners: list[WorkerId] = []

    def __contains__(self, worker_id: object) -> bool:
        return worker_id in self._workers

    def __len__(self) -> int:
        return len(self._workers)

    def add(self, worker_id: WorkerId) -> None:
        """Put a worker on the ring; adding one again changes nothing."""
        if worker_id in self._workers:
            return
        self._workers.add(worker_id)
        points = [(_hash(f"{worker_id}#{i}".encode()), worker_id) for i in range(self._num_points)]
        # Two points on one hash are ordered by name, so the ring does not depend on who came first.
        self._set(sorted([*zip(self._hashes, self._owners, strict=True), *points]))

    def remove(self, worker_id: WorkerId) -> None:
        """Take a worker off the ring, if it is on it."""
        if worker_id not in self._workers:
            return
        self._workers.remove(worker_id)
        points = zip(self._hashes, self._owners, strict=True)
        self._set([point for point in points if point[1] != worker_id])

    def owner(self, key: bytes) -> WorkerId:
        """Whose key it is; `LookupError` on an empty ring."""
        for worker_id in self.walk(key):
            return worker_id
        raise LookupError("no worker is on the ring")

    def walk(self, key: bytes) -> Iterator[WorkerId]:
        """Every worker once: the key's owner, then those that come next on the ring."""
        start = bisect_left(self._hashes, _hash(key))
        seen: set[WorkerId] = set()
        for i in range(start - len(self._owners), start):  # negative: around the ring's end
            worker_id = self._owners[i]
            if worker_id not in seen:
                seen.add(worker_id)
                yield worker_id
                if len(seen) == len(self._workers):
                    return

    def _set(self, points: list[tuple[int, WorkerId]]) -> None:
        self._hashes = [point[0] for point in points]
        self._owners = [point[1] for point in points]


def bounded_capacity(*, num_requests: int, num_workers: int, max_imbalance: float) -> int:
    """How many requests a worker may have once one more than `num_requests` is placed."""
    return math.ceil((1 + max_imbalance) * (num_requests + 1) / num_workers)


def _hash(key: bytes) -> int:
    return xxhash.xxh3_64_intdigest(key)
