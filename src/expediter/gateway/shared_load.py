"""In-flight work that several gateway processes see: a table in shared memory, a row a process.

Only its own process writes a row, so nothing is locked; everybody reads all rows and adds up what
the others have. A row names the workers that its columns are for, because processes may learn of
workers in different orders. Words are eight bytes and aligned: a reader sees an old value or a
new one, never half of each. A process that dies leaves its row to its parent, which wipes it.

    row      version, number of columns, then the columns
    column   name (hash of the worker's), tokens, requests
"""

import hashlib
import mmap
import os

import numpy as np

from expediter.clock import Clock
from expediter.load import WorkerId
from expediter.routing.outstanding import OTHERS_TOKENS, OutstandingWork, Work
from expediter.routing.view import WorkerView

MAX_WORKERS = 4096
REFRESH_SECONDS = 0.002
"""How old the sum of the others' rows may be: one burst to one process is counted at once."""

_HEADER_WORDS = 8
_ROW_WORDS = _HEADER_WORDS + 3 * MAX_WORKERS
WORD_BYTES = 8
ROW_BYTES = _ROW_WORDS * WORD_BYTES


class LoadTable:
    """The memory; every process maps the same descriptor."""

    def __init__(self, fd: int, num_rows: int) -> None:
        self.num_rows = num_rows
        self._memory = mmap.mmap(fd, num_rows * ROW_BYTES)
        words = np.frombuffer(self._memory, dtype=np.float64).reshape(num_rows, _ROW_WORDS)
        columns = words[:, _HEADER_WORDS:].reshape(num_rows, 3, MAX_WORKERS)
        self.counts = words[:, :_HEADER_WORDS].view(np.uint64)
        self.names = columns[:, 0].view(np.uint64)
        self.tokens = columns[:, 1]
        self.requests = columns[:, 2]

    def wipe(self, row: int) -> None:
        """Its process is gone, and with it all that was in flight there."""
        self.counts[row, 1] = 0
        self.tokens[row] = 0.0
        self.requests[row] = 0.0
        self.counts[row, 0] += np.uint64(1)

    def version(self, row: int) -> int:
        """Another number whenever the row's columns have other names."""
        return int(self.counts[row, 0])

    def column_names(self, row: int) -> list[int]:
        """The workers that the columns are for, hashed."""
        names: list[int] = self.names[row, : int(self.counts[row, 1])].tolist()
        return names

    def name_column(self, row: int, column: int, worker_id: WorkerId) -> None:
        """Give a column to a worker, empty; only the row's own process may."""
        self.tokens[row, column] = self.requests[row, column] = 0.0
        self.names[row, column] = hash_name(worker_id)
        self.counts[row, 1] = max(int(self.counts[row, 1]), column + 1)
        self.counts[row, 0] += np.uint64(1)

    def total_requests(self, row: int) -> int:
        """What the process has in flight, all workers together."""
        return int(self.requests[row].sum())


def create_memory(num_rows: int) -> int:
    """A descriptor of zeroed memory without a name, so that nothing is left behind."""
    fd = os.memfd_create("expediter-load")
    os.ftruncate(fd, num_rows * ROW_BYTES)
    return fd


class SharedWork(OutstandingWork):
    """Outstanding work of one process, published in its row; what is read includes the others'."""

    def __init__(self, table: LoadTable, row: int, *, clock: Clock) -> None:
        super().__init__()
        table.wipe(row)
        self.own = OutstandingWork()
        self._table = table
        self._row = row
        self._clock = clock
        self._columns: dict[WorkerId, int] = {}
        self._others = _Others(table, row)
        self._read_at = float("-inf")

    def start(
        self, worker_id: WorkerId, *, prefill_tokens: int, max_output_tokens: int | None
    ) -> Work:
        """See OutstandingWork."""
        work = self.own.start(
            worker_id, prefill_tokens=prefill_tokens, max_output_tokens=max_output_tokens
        )
        self._publish(worker_id)
        return work

    def prefilled(self, work: Work) -> None:
        """See OutstandingWork."""
        self.own.prefilled(work)
        self._publish(work.worker_id)

    def finish(self, work: Work) -> None:
        """See OutstandingWork."""
        self.own.finish(work)
        self._publish(work.worker_id)

    def tokens(self, worker_id: WorkerId) -> float:
        """All processes' work at the worker."""
        return self.own.tokens(worker_id) + self._elsewhere(worker_id)[0]

    def prefill_tokens(self, worker_id: WorkerId) -> float:
        """This process's, and what the others have besides answers of the usual length."""
        tokens, num_requests = self._elsewhere(worker_id)
        return self.own.prefill_tokens(worker_id) + max(0.0, tokens - num_requests * OTHERS_TOKENS)

    def num_requests(self, worker_id: WorkerId) -> int:
        """All processes' requests at the worker."""
        return self.own.num_requests(worker_id) + int(self._elsewhere(worker_id)[1])

    def view(self, worker_id: WorkerId) -> WorkerView:
        """See OutstandingWork; not kept, as the others do not tell when theirs would change."""
        return WorkerView(
            worker_id=worker_id,
            load_tokens=self.tokens(worker_id),
            num_requests=self.num_requests(worker_id),
            prefill_tokens=self.prefill_tokens(worker_id),
        )

    def num_elsewhere(self, worker_id: WorkerId) -> int:
        """The other processes' requests at the worker."""
        return int(self._elsewhere(worker_id)[1])

    def _elsewhere(self, worker_id: WorkerId) -> tuple[float, float]:
        now = self._clock()
        if now - self._read_at > REFRESH_SECONDS:
            self._read_at = now
            self._others.read()
        return self._others.load(worker_id)

    def _publish(self, worker_id: WorkerId) -> None:
        column = self._columns.get(worker_id)
        if column is None:
            column = self._take_column(worker_id)
            if column is None:
                return
        self._table.tokens[self._row, column] = self.own.tokens(worker_id)
        self._table.requests[self._row, column] = self.own.num_requests(worker_id)

    def _take_column(self, worker_id: WorkerId) -> int | None:
        """A column for a worker not seen yet: a new one, or one whose worker has nothing left."""
        columns = self._columns
        if len(columns) < MAX_WORKERS:
            column = len(columns)
        else:
            idle = next((name for name in columns if not self.own.num_requests(name)), None)
            if idle is None:
                return None  # more busy workers than the table has room for
            column = columns.pop(idle)
        columns[worker_id] = column
        self._table.name_column(self._row, column, worker_id)
        return column


class _Others:
    """The rows of the other processes, added up by worker when they are read."""

    def __init__(self, table: LoadTable, row: int) -> None:
        self._table = table
        self._rows = [number for number in range(table.num_rows) if number != row]
        self._versions: dict[int, int] = {}
        self._places: dict[int, list[int]] = {row: [] for row in self._rows}
        self._place_of: dict[int, int] = {}
        self._hashes: dict[WorkerId, int] = {}
        self._sums: list[list[float]] = [[], []]

    def read(self) -> None:
        """Add up what the rows say now."""
        if any(self._table.version(row) != self._versions.get(row) for row in self._rows):
            self._learn()
        sums = np.zeros((2, len(self._place_of)))
        for row in self._rows:
            places = self._places[row]
            sums[0, places] += self._table.tokens[row, : len(places)]
            sums[1, places] += self._table.requests[row, : len(places)]
        self._sums = sums.tolist()

    def load(self, worker_id: WorkerId) -> tuple[float, float]:
        """Tokens and requests, as of the last read."""
        name = self._hashes.get(worker_id)
        if name is None:
            if len(self._hashes) > MAX_WORKERS:
                self._hashes.clear()
            name = self._hashes[worker_id] = hash_name(worker_id)
        place = self._place_of.get(name, -1)
        tokens, requests = self._sums
        return (tokens[place], requests[place]) if 0 <= place < len(tokens) else (0.0, 0.0)

    def _learn(self) -> None:
        """Which workers the rows' columns are for: only those that some row has now."""
        self._place_of.clear()
        for row in self._rows:
            self._versions[row] = self._table.version(row)
            self._places[row] = [
                self._place_of.setdefault(name, len(self._place_of))
                for name in self._table.column_names(row)
            ]


def hash_name(worker_id: WorkerId) -> int:
    """A worker's name in one word."""
    return int.from_bytes(hashlib.blake2b(worker_id.encode(), digest_size=8).digest(), "little")
