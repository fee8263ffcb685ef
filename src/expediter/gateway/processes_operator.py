"""Several processes operated as one: reports are added up, orders go to every process."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from expediter.errors import RequestError
from expediter.gateway.reports import Json

ASK_SECONDS = 10.0
_OF_A_WORKER = frozenset({"num_running", "num_waiting", "kv_usage"})
"""What a worker says of itself is the same in every process."""


class ProcessUnavailable(RequestError):
    """A process does not answer: it has died, or is not up yet."""

    status = 503
    kind = "service_unavailable"


class ProcessesOperator:
    """See Operator; `paths` are the sockets on which the processes are operated."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    async def metrics(self) -> bytes:
        """Every process's metrics, told apart by the label `process`; one that is down has none."""
        answers = [self._ask(path, "GET", "/metrics") for path in self._paths]
        pages = await asyncio.gather(*answers, return_exceptions=True)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Merged(pages))
        return generate_latest(registry)

    async def readiness(self) -> Json:
        """Ready if every process is: any of them may get the next connection."""
        found: list[Json] = await self._all("GET", "/ready")
        return next((each for each in found if not each["ready"]), found[0])

    async def workers(self) -> list[Json]:
        """Every worker, with what all processes have in flight there."""
        return merged_workers(await self._all("GET", "/workers"))

    async def decisions(self, limit: int) -> list[Json]:
        """The last decisions of all, newest first."""
        found = await self._all("GET", f"/decisions?limit={limit}")
        decisions = [
            {"process": number, **decision}
            for number, decisions in enumerate(found)
            for decision in decisions
        ]
        return sorted(decisions, key=lambda decision: decision["age_seconds"])[:limit]

    async def stats(self) -> Json:
        """The sum of all snapshots."""
        found = await self._all("GET", "/stats")
        workers = merged_workers([stats.pop("workers") for stats in found])
        return {"num_processes": len(found), **_sum(found), "workers": workers}

    async def config(self) -> Json:
        """The first process's, as they are all the same."""
        return await self._first("GET", "/config")

    async def add_worker(self, endpoint: bytes) -> Json:
        """See Operator."""
        return await self._first("POST", "/workers", endpoint)

    async def remove_worker(self, worker_id: str) -> Json:
        """See Operator."""
        return await self._first("DELETE", f"/workers/{quote(worker_id)}")

    async def drain(self, worker_id: str, *, drains: bool) -> Json:
        """See Operator."""
        verb = "drain" if drains else "undrain"
        return await self._first("POST", f"/workers/{quote(worker_id)}/{verb}")

    async def use_policy(self, changes: bytes) -> Json:
        """See Operator."""
        return await self._first("POST", "/policy", changes)

    async def _first(self, method: str, target: str, body: bytes = b"") -> Json:
        """Ask every process; the first one's answer stands for all."""
        answers = await self._all(method, target, body)
        found: Json = answers[0]
        return found

    async def _all(self, method: str, target: str, body: bytes = b"") -> list[Any]:
        answers = [self._ask(path, method, target, body) for path in self._paths]
        return [msgspec.json.decode(answer) for answer in await asyncio.gather(*answers)]

    async def _ask(self, path: Path, method: str, target: str, body: bytes = b"") -> bytes:
        """One process's answer; raises RequestError if it refused or said nothing."""
        try:
            async with asyncio.timeout(ASK_SECONDS):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    head = (
                        f"{method} {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
                        f"content-length: {len(body)}\r\n\r\n"
                    )
                    writer.write(head.encode() + body)
                    status, answer = _parsed(await reader.read())
                finally:
                    writer.close()
        except (OSError, TimeoutError, ValueError) as error:
            raise ProcessUnavailable(f"gateway process {path.stem} did not answer") from error
        if status >= HTTPStatus.BAD_REQUEST and not target.startswith("/ready"):
            raise _refusal(status, answer)
        return answer


class _Merged:
    """Pages of metrics as one, each sample with its process."""

    def __init__(self, pages: Sequence[bytes | BaseException]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for number, page in enumerate(self._pages):
            if isinstance(page, BaseException):
                continue
            for family in text_string_to_metric_families(page.decode()):
                merged = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    labels = {**sample.labels, "process": str(number)}
                    merged.add_sample(sample.name, labels, sample.value)
        yield from families.values()


def merged_workers(found: Sequence[Sequence[Mapping[str, Any]]]) -> list[Json]:
    """Each worker once: counts are added, the rest is as the first process has it."""
    merged: dict[str, Json] = {}
    for workers in found:
        for worker in workers:
            name = worker["worker_id"]
            if name not in merged:
                merged[name] = dict(worker)
                continue
            for key, value in worker.items():
                if _is_count(value) and key not in _OF_A_WORKER:
                    merged[name][key] = merged[name].get(key, 0) + value
    return list(merged.values())


def _sum(values: Sequence[Any]) -> Any:
    """Counts added, dicts by key, histograms' counts by place; other values as the first has."""
    first = next((value for value in values if value), values[0])
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _merge_key(key, [v[key] for v in values if key in v]) for key in keys}
    if _is_count(first):
        return sum(values)
    return first


def _merge_key(key: str, values: Sequence[Any]) -> Any:
    if key == "uptime_seconds":
        return max(values)
    if key == "counts":
        rows = [row for row in values if row]
        return [sum(column) for column in zip(*rows, strict=True)]
    return _sum(values)


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parsed(answer: bytes) -> tuple[int, bytes]:
    head, separator, body = answer.partition(b"\r\n\r\n")
    if not separator:
        raise ValueError("no answer")
    return int(head.split(b" ", 2)[1]), body


def _refusal(status: int, answer: bytes) -> RequestError:
    try:
        message = msgspec.json.decode(answer)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        message = f"status {status}"
    error = RequestError(str(message))
    error.status = status
    return error
