"""Who is let in and where it is written down: tenants, and the access log, as files say now."""

import asyncio
import logging

from expediter.clock import Clock
from expediter.config import GatewayConfig
from expediter.errors import ConfigError
from expediter.gateway.access_log import AccessLog
from expediter.gateway.endpoints import Endpoints
from expediter.gateway.handler import RequestHandler
from expediter.gateway.tenants import Tenancy

logger = logging.getLogger(__name__)

FILES_SECONDS = 1.0


class Admission:
    """Gives the handler its tenants and its log, and others when these change."""

    def __init__(
        self, config: GatewayConfig, *, handler: RequestHandler, endpoints: Endpoints, clock: Clock
    ) -> None:
        """Raises ConfigError if tenants cannot be told apart, or a file cannot be used."""
        self._handler = handler
        self._endpoints = endpoints
        self._clock = clock
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Raises ConfigError, and nothing is changed."""
        before = self._handler.access_log
        log = self._log(config)
        try:
            tenancy = self._tenants(config)
        except ConfigError:
            if log is not None and log is not before:
                log.close()
            raise
        if before is not None and before is not log:
            before.close()
        self._handler.log_to(log)
        self._handler.tenancy = tenancy
        self._endpoints.show_all(tenancy is None and config.processes == 1)

    def reopen(self) -> None:
        """Write the access log to the file that has its name now."""
        if self._handler.access_log is not None:
            self._handler.access_log.reopen()

    def close(self) -> None:
        """Write the rest."""
        if self._handler.access_log is not None:
            self._handler.access_log.close()

    async def run(self) -> None:
        """Write the access log now and then, and see whether the key file is another."""
        while True:
            await asyncio.sleep(FILES_SECONDS)
            if self._handler.access_log is not None:
                self._handler.access_log.flush()
            tenancy = self._handler.tenancy
            if tenancy is not None and tenancy.has_new_keys():
                try:
                    self._handler.tenancy = tenancy.reread()
                    logger.info("the tenants' keys were read again")
                except ConfigError as error:
                    logger.error("the keys before stay valid: %s", error)

    def _tenants(self, config: GatewayConfig) -> Tenancy | None:
        if config.tenancy is None:
            return None
        return Tenancy(config.tenancy, clock=self._clock, before=self._handler.tenancy)

    def _log(self, config: GatewayConfig) -> AccessLog | None:
        """The log of these settings: the one that is open, if it is the same."""
        if config.access_log is None:
            return None
        log = self._handler.access_log
        if log is not None and log.path == config.access_log.path:
            return log
        return AccessLog(config.access_log.path)
