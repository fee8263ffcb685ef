"""Everything of the dashboard and the playground, for an admin port to serve."""

from collections.abc import Callable

from starlette.routing import BaseRoute

from expediter.clock import Clock
from expediter.config import GatewayConfig
from expediter.dashboard.events import event_routes
from expediter.dashboard.playground import playground_routes
from expediter.gateway.operator import Operator


def dashboard_routes(
    operator: Operator, config: GatewayConfig, *, url: Callable[[], str], clock: Clock
) -> list[BaseRoute]:
    """What the pages ask; `url` is where the gateway serves clients, as seen from here."""
    return [*event_routes(operator, clock=clock), *playground_routes(config, url=url)]
