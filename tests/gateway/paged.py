"""A gateway whose admin port has its pages, in this process."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from fake_worker import FakeWorker, until
from operated import QUIET, policy_of

from expediter.config import AdminConfig, GatewayConfig
from expediter.dashboard.pages import page_routes
from expediter.dashboard.routes import dashboard_routes
from expediter.gateway.admin import AdminServer, create_admin_app
from expediter.gateway.gateway import Gateway
from expediter.gateway.operator import GatewayOperator


@dataclass
class Paged:
    """`client` speaks to the admin port."""

    gateway: Gateway
    admin: AdminServer
    client: httpx.AsyncClient


@asynccontextmanager
async def paged(
    *workers: FakeWorker, token: str | None = None, **settings: object
) -> AsyncIterator[Paged]:
    """Running, once it has seen every worker up."""
    told = {"shutdown_seconds": 1.0, "health_interval_seconds": 0.05, "health": QUIET, **settings}
    endpoints = tuple(worker.endpoint for worker in workers)
    config = GatewayConfig(port=0, workers=endpoints, **told)  # type: ignore[arg-type]
    gateway = Gateway(config, policy=policy_of(config.routing), build_policy=policy_of)
    await gateway.start()
    routes = dashboard_routes(
        GatewayOperator(gateway),
        config,
        url=lambda: f"http://127.0.0.1:{gateway.port}",
        clock=time.monotonic,
    )
    app = create_admin_app(gateway, token=token, routes=routes, pages=page_routes())
    admin = AdminServer(app, AdminConfig(port=0, token=token), gateway_port=gateway.port)
    await admin.start()
    try:
        await until(lambda: len(gateway.membership.ready()) == len(workers))
        url = f"http://127.0.0.1:{admin.port}"
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            yield Paged(gateway, admin, client)
    finally:
        await admin.stop()
        await gateway.stop()
