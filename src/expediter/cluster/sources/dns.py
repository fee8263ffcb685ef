"""Workers behind a name: its addresses, or its SRV records with their ports.

The system's resolver gives addresses. SRV records, or a name server of one's own, take dnspython.
A name that does not resolve, or to nothing, changes nothing: resolvers fail in just this way.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from expediter.config import WorkerEndpoint
from expediter.config.discovery import DnsDiscovery
from expediter.errors import ConfigError

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver

logger = logging.getLogger(__name__)

LOOKUP_SECONDS = 5.0
DNS_PORT = 53


class DnsSource:
    """See `WorkerSource`."""

    def __init__(self, config: DnsDiscovery) -> None:
        """Raises ConfigError if dnspython is needed and not installed."""
        self._config = config
        self._needs_library = config.record == "srv" or config.nameserver is not None
        if self._needs_library and find_spec("dns") is None:
            raise ConfigError("SRV records and name servers need dnspython: expediter[dns]")

    async def watch(self) -> AsyncGenerator[list[WorkerEndpoint]]:
        """The list at first and whenever it differs; the order of records means nothing."""
        told: list[tuple[str, int]] | None = None
        problem = ""
        while True:
            try:
                found = sorted(set(await self._look_up()))
                if found and found != told:
                    yield [self._endpoint(host, port) for host, port in found]
                    told, problem = found, ""
            except (OSError, LookupError) as error:
                if str(error) != problem:
                    problem = str(error)
                    logger.warning("%s: workers stay as they are: %s", self._config.name, problem)
            await asyncio.sleep(self._config.poll_seconds)

    def _endpoint(self, host: str, port: int) -> WorkerEndpoint:
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return WorkerEndpoint(url=f"{self._config.scheme}://{authority}")

    async def _look_up(self) -> list[tuple[str, int]]:
        """Hosts and ports; LookupError or OSError if there are none."""
        if self._needs_library:
            return await self._ask_library()
        config, loop = self._config, asyncio.get_running_loop()
        async with asyncio.timeout(LOOKUP_SECONDS):
            found = await loop.getaddrinfo(config.name, config.port, type=socket.SOCK_STREAM)
        return [(str(address[0]), config.port) for *_, address in found]

    async def _ask_library(self) -> list[tuple[str, int]]:
        from dns.exception import DNSException
        from dns.resolver import NoAnswer

        config, resolver = self._config, self._resolver()
        try:
            if config.record == "srv":
                records = await resolver.resolve(config.name, "SRV", lifetime=LOOKUP_SECONDS)
                return [(str(r.target).rstrip("."), int(r.port)) for r in records]
            hosts: list[str] = []
            for kind in ("A", "AAAA"):
                try:
                    records = await resolver.resolve(config.name, kind, lifetime=LOOKUP_SECONDS)
                except NoAnswer:
                    continue
                hosts += [str(record) for record in records]
            return [(host, config.port) for host in hosts]
        except DNSException as error:
            raise LookupError(str(error)) from None

    def _resolver(self) -> "Resolver":
        from dns.asyncresolver import Resolver

        server = self._config.nameserver
        if server is None:
            return Resolver()
        resolver = Resolver(configure=False)
        host, _, port = server.rpartition(":") if server.count(":") == 1 else (server, "", "")
        resolver.nameservers = [host]
        resolver.port = int(port or DNS_PORT)
        return resolver
