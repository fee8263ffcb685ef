"""Keeps a fleet as a source says it is.

A source tells the whole list each time. What has come is added; what has gone is drained and then
removed, and taken back if it returns before that; what has changed is replaced once it is idle.
Workers that were not found by the source are not its business. A source that fails tells nothing,
so the fleet stays as it was.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from expediter.cluster.membership import Membership, worker_id_of
from expediter.config import WorkerEndpoint
from expediter.load import WorkerId

logger = logging.getLogger(__name__)

Endpoints = Mapping[WorkerId, WorkerEndpoint]


class WorkerSource(Protocol):
    """Tells who the workers are."""

    def watch(self) -> AsyncGenerator[list[WorkerEndpoint]]:
        """All workers, at first and after each change. Failures are logged, and tell nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """From what is to what is wanted; a worker whose endpoint changed is in both."""

    remove: list[WorkerId]
    add: list[WorkerEndpoint]


def reconcile(current: Endpoints, wanted: Endpoints) -> Changes:
    """What has to go and what has to come. Removing first, then adding, gives `wanted`."""
    return Changes(
        remove=[name for name, endpoint in current.items() if wanted.get(name) != endpoint],
        add=[endpoint for name, endpoint in wanted.items() if current.get(name) != endpoint],
    )


def by_name(endpoints: Iterable[WorkerEndpoint]) -> dict[WorkerId, WorkerEndpoint]:
    """Endpoints by their worker's name; of two with one name the first, and none without a host."""
    named: dict[WorkerId, WorkerEndpoint] = {}
    for endpoint in endpoints:
        url = urlsplit(endpoint.url)
        if url.scheme not in ("http", "https") or not url.hostname:
            logger.warning("%r is no worker's URL: http://host:port is expected", endpoint.url)
            continue
        if named.setdefault(worker_id_of(endpoint), endpoint) is not endpoint:
            logger.warning("two workers are called %r: the first counts", worker_id_of(endpoint))
    return named


async def follow(membership: Membership, source: WorkerSource) -> None:
    """Change the membership as the source tells, until cancelled."""
    found: dict[WorkerId, WorkerEndpoint] = {}
    async with aclosing(source.watch()) as lists, asyncio.TaskGroup() as tasks:
        async for endpoints in lists:
            wanted = by_name(endpoints)
            changes = reconcile(found, wanted)
            found.clear()
            found.update(wanted)
            coming = {worker_id_of(endpoint): endpoint for endpoint in changes.add}
            for name in changes.remove:
                if name in membership.members and name not in coming:
                    logger.info("%s is no longer listed: it is drained and removed", name)
                    membership.retire(name)
            for name, endpoint in coming.items():
                member = membership.members.get(name)
                if member is None:
                    membership.add(endpoint)
                    logger.info("%s is listed at %s", name, endpoint.url)
                elif member.endpoint == endpoint:
                    membership.undrain(name)
                else:
                    tasks.create_task(_replace(membership, name, found))


async def _replace(membership: Membership, name: WorkerId, found: Endpoints) -> None:
    """Another worker under the same name, once the old one is idle: the one listed then."""
    if name in membership.members:
        await membership.remove(name)
    endpoint = found.get(name)
    if endpoint is not None and name not in membership.members:
        membership.add(endpoint)
