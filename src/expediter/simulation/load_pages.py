"""What a simulated worker answers to GETs: where its KV is, and how busy it says it is."""

import asyncio
from collections import deque

import msgspec

from expediter.simulation.handing import Hands
from expediter.simulation.worker import SimulatedWorker

MAX_REMEMBERED = 1024  # reports


class WorkerPages:
    """See `Pages`. Its reports of load may be made late, or stop to change."""

    def __init__(
        self,
        worker: SimulatedWorker,
        *,
        hands: Hands | None,
        block_size: int,
        reports_load: bool,
    ) -> None:
        self._worker = worker
        self._block_size = block_size
        self._hands = hands
        self._reports_load = reports_load
        self._reports: deque[tuple[float, bytes]] = deque(maxlen=MAX_REMEMBERED)
        self._late: float | None = 0.0

    def get(self, path: str) -> bytes | None:
        """See `Pages`."""
        if path == "/kv_transfer_source" and self._hands is not None:
            return msgspec.json.encode(self._hands.description)
        return self._load() if path == "/metrics" and self._reports_load else None

    def be_late(self, seconds: float | None) -> None:
        """From now on, tell the load of so many seconds ago; None: that of now, whatever comes."""
        if seconds is None:
            self._reports.append((self._now, self._report()))
        self._late = seconds

    def _load(self) -> bytes:
        if self._late is None:
            return self._reports[-1][1]
        now = self._now
        self._reports.append((now, self._report()))
        due = [report for at, report in self._reports if at <= now - self._late]
        return due[-1] if due else self._reports[0][1]

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _report(self) -> bytes:
        """As vLLM says it, as far as gateways read it."""
        load, size = self._worker.load(), self._block_size
        lines = (
            f"vllm:num_requests_running {load.num_running}",
            f"vllm:num_requests_waiting {load.num_waiting}",
            f"vllm:kv_cache_usage_perc {load.kv_usage}",
            f'vllm:cache_config_info{{block_size="{size}",'
            f'num_gpu_blocks="{load.num_total_blocks}"}} 1',
        )
        return "\n".join((*lines, "")).encode()
