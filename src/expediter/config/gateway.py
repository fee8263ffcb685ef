"""Settings of the front door: its workers, its tenants, its limits."""

from typing import Annotated

import msgspec

from expediter.config.disaggregation import DisaggregationConfig
from expediter.config.discovery import Discovery
from expediter.config.health import HealthConfig
from expediter.config.operations import AccessLogConfig, AdminConfig, TlsConfig, WorkerTlsConfig
from expediter.config.routing import RoutingConfig
from expediter.config.section import Port, Positive, Seconds, Section
from expediter.load import WorkerRole


class WorkerEndpoint(Section, frozen=True, kw_only=True):
    """A worker as the gateway sees it; without `kv_events` its cache is assumed from placements.

    `role` says which stages of a request it takes.
    """

    url: str
    worker_id: str | None = None
    role: WorkerRole = WorkerRole.BOTH
    kv_events: str | None = None
    kv_replay: str | None = None


class TenantConfig(Section, frozen=True, kw_only=True):
    """One tenant. `keys` are hashes of its API keys; a limit that is not set does not limit."""

    tenant_id: Annotated[str, msgspec.Meta(min_length=1)]
    keys: tuple[Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")], ...] = ()
    cache_salt: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{16,128}$")] | None = None
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    max_concurrent: Positive | None = None


class TenancyConfig(Section, frozen=True, kw_only=True):
    """Who may use the gateway. `secret` makes the cache salts of tenants that give none.

    `key_file` holds more keys, a line each: tenant-id and hash.
    """

    tenants: tuple[TenantConfig, ...]
    secret: Annotated[str, msgspec.Meta(min_length=16)] | None = None
    worker_authorization: Annotated[str, msgspec.Meta(pattern="^[!-~]([ -~]*[!-~])?$")] | None = (
        None  # sent to workers; the clients' keys never are
    )
    key_file: str | None = None
    assumed_output_tokens: Positive = 1024  # reserved where a request sets no limit


class GatewayConfig(Section, frozen=True, kw_only=True):
    """The front door. Time-outs are seconds and count silence, not total time."""

    host: str = "127.0.0.1"
    port: Port = 8000
    tokenizer: str | None = None  # folder or GGUF file; without it routing sees text, not tokens
    max_body_bytes: Positive = 32 * 1024 * 1024
    max_header_bytes: Positive = 64 * 1024
    connect_seconds: Seconds = 5.0
    first_byte_seconds: Seconds = 600.0
    idle_seconds: Seconds = 300.0
    header_seconds: Seconds = 30.0  # from a request's first byte to the end of its head
    keep_alive_seconds: Seconds = 75.0  # a client's connection without a request
    shutdown_seconds: Seconds = 10.0  # how long requests in flight may take to finish
    health_interval_seconds: Seconds = 1.0
    processes: Positive = 1  # that share the port, each with an index of its own
    workers: tuple[WorkerEndpoint, ...] = ()
    discovery: Discovery | None = None  # finds workers besides those named here
    health: HealthConfig = HealthConfig()
    routing: RoutingConfig = RoutingConfig()
    disaggregation: DisaggregationConfig = DisaggregationConfig()
    tenancy: TenancyConfig | None = None  # without it the gateway is open to all
    admin: AdminConfig = AdminConfig()
    tls: TlsConfig | None = None  # without it clients speak plain HTTP
    worker_tls: WorkerTlsConfig = WorkerTlsConfig()
    access_log: AccessLogConfig | None = None
