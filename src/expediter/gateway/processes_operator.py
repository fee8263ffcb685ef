"""Several processes operated as one: reports are added up, orders go to every process.

A process that is down or starting has no part in reports. It gets the orders that hold once it
answers, and whoever gives one meanwhile is told that it is still to come.
"""

import asyncio
import logging
from collections.abc import Container, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from expediter.errors import RequestError
from expediter.gateway.activity import merged_activity
from expediter.gateway.merged_reports import merged_counts, merged_metrics, merged_workers
from expediter.gateway.raw_traffic import RAW_TRAFFIC, merged_trace
from expediter.gateway.reports import Json
from expediter.gateway.standing_orders import POLICY, WORKERS, Order, StandingOrders

logger = logging.getLogger(__name__)

ASK_SECONDS = 5.0
RESTORE_TRIES = 10
RESTORE_SECONDS = 1.0  # between two tries: a worker may have to be discovered first


class ProcessUnavailable(RequestError):
    """A process does not answer: it has died, or is not up yet."""

    status = 503
    kind = "service_unavailable"


class ProcessesOperator:
    """See Operator; `paths` are the sockets on which the processes are operated."""

    def __init__(
        self, paths: Sequence[Path], *, running: Container[int], orders: StandingOrders
    ) -> None:
        """`running` are the numbers of those that have not died."""
        self._paths = paths
        self._running = running
        self._orders = orders
        self._giving = asyncio.Lock()

    async def metrics(self) -> bytes:
        """Every process's metrics, told apart by the label `process`; one that is down has none."""
        return merged_metrics(await self._pages("/metrics"))

    async def readiness(self) -> Json:
        """Ready if every process that answers is: any of them may get the next connection."""
        found = await self._reports("/ready")
        return next((each for each in found.values() if not each["ready"]), _first(found))

    async def workers(self) -> list[Json]:
        """Every worker, with what all processes have in flight there."""
        found = await self._reports("/workers")
        return merged_workers(list(found.values()))

    async def decisions(self, limit: int) -> list[Json]:
        """The last decisions of all, newest first."""
        found = await self._reports(f"/decisions?limit={limit}")
        decisions = [
            {"process": number, **decision}
            for number, decisions in found.items()
            for decision in decisions
        ]
        return sorted(decisions, key=lambda decision: decision["age_seconds"])[:limit]

    async def trace(self, seconds: int) -> bytes:
        """The requests of all processes, in order of arrival."""
        return merged_trace((await self._pages(f"{RAW_TRAFFIC}?seconds={seconds}")).values())

    async def stats(self) -> Json:
        """The sum of all snapshots."""
        found = list((await self._reports("/stats")).values())
        workers = merged_workers([stats.pop("workers") for stats in found])
        return {
            "num_processes": len(self._paths),
            "num_answering": len(found),
            **merged_counts(found),
            "workers": workers,
        }

    async def activity(self) -> Json:
        """That of all, as if it were one process's."""
        return merged_activity(list((await self._reports("/activity")).values()))

    async def config(self) -> Json:
        """The first process's; should others have different ones, it says which."""
        found = await self._reports("/config")
        first = _first(found)
        others = [number for number, config in found.items() if config != first]
        return {**first, "differing-processes": others} if others else first

    async def add_worker(self, endpoint: bytes) -> Json:
        """See Operator."""
        return await self._order(Order("POST", WORKERS, endpoint))

    async def remove_worker(self, worker_id: str) -> Json:
        """See Operator."""
        return await self._order(Order("DELETE", f"{WORKERS}/{quote(worker_id)}"))

    async def drain(self, worker_id: str, *, drains: bool) -> Json:
        """See Operator."""
        verb = "drain" if drains else "undrain"
        return await self._order(Order("POST", f"{WORKERS}/{quote(worker_id)}/{verb}"))

    async def use_policy(self, changes: bytes) -> Json:
        """See Operator."""
        return await self._order(Order("POST", POLICY, changes))

    async def restore(self, number: int) -> None:
        """Give a process that has just been started the orders that hold, once it answers."""
        while True:
            try:
                await self._ask(number, Order("GET", "/health"))
                break
            except ProcessUnavailable:
                await asyncio.sleep(RESTORE_SECONDS)
        orders = self._orders.all()
        for _ in range(RESTORE_TRIES):
            async with self._giving:
                orders = [order for order in orders if not await self._is_given(number, order)]
            if not orders:
                return
            await asyncio.sleep(RESTORE_SECONDS)

    async def _is_given(self, number: int, order: Order) -> bool:
        """Give an order again; False if it should be given once more: its worker is yet to come."""
        try:
            await self._ask(number, order)
        except RequestError as error:
            logger.info("process %d, %s %s: %s", number, order.method, order.target, error)
            return error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE)
        return True

    async def _order(self, order: Order) -> Json:
        """Give it to every process; raises RequestError if none took it, or only some."""
        async with self._giving:
            numbers = range(len(self._paths))
            asked = [self._ask(number, order) for number in numbers]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            found = [msgspec.json.decode(each) for each in answers if isinstance(each, bytes)]
            errors = {n: e for n, e in enumerate(answers) if isinstance(e, BaseException)}
            pending = [n for n, e in errors.items() if isinstance(e, ProcessUnavailable)]
            refusals = [e for n, e in errors.items() if n not in pending]
            if not found:
                raise next(iter([*refusals, *errors.values()]))
            worker_id = found[0]["worker_id"] if order.target.startswith(WORKERS) else None
            self._orders.keep(order, worker_id=worker_id)
        if refusals:
            raise RequestError(f"{len(found)} of the processes did it, but: {refusals[0]}")
        first: Json = found[0]
        return {**first, "pending_processes": pending} if pending else first

    async def _reports(self, target: str) -> dict[int, Any]:
        pages = await self._pages(target)
        return {number: msgspec.json.decode(page) for number, page in pages.items()}

    async def _pages(self, target: str) -> dict[int, bytes]:
        """What the processes say, by number; raises ProcessUnavailable if none answers."""
        numbers = range(len(self._paths))
        asked = [self._ask(number, Order("GET", target)) for number in numbers]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, ProcessUnavailable):
                raise answer
        found = {n: page for n, page in enumerate(answers) if isinstance(page, bytes)}
        if not found:
            raise ProcessUnavailable("no gateway process answers")
        return found

    async def _ask(self, number: int, order: Order) -> bytes:
        """One process's answer; raises RequestError if it refused or said nothing."""
        if number not in self._running:
            raise ProcessUnavailable(f"gateway process {number} is down")
        try:
            async with asyncio.timeout(ASK_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._paths[number])
                try:
                    head = (
                        f"{order.method} {order.target} HTTP/1.1\r\nhost: localhost\r\n"
                        f"connection: close\r\ncontent-length: {len(order.body)}\r\n\r\n"
                    )
                    writer.write(head.encode() + order.body)
                    status, answer = _parsed(await reader.read())
                finally:
                    writer.close()
        except (OSError, TimeoutError, ValueError) as error:
            raise ProcessUnavailable(f"gateway process {number} did not answer") from error
        if status >= HTTPStatus.BAD_REQUEST and order.target != "/ready":
            raise _refusal(status, answer)
        return answer


def _first(found: dict[int, Json]) -> Json:
    return next(iter(found.values()))


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
