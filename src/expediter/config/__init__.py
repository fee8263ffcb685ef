"""Every setting, one frozen section a component.

Each constructor gets its own section and never the root. Keys are kebab-case in TOML;
unknown keys are errors that name their path. This package alone reads the environment.
"""

from expediter.config.disaggregation import (
    DisaggregationConfig,
    RebalanceConfig,
)
from expediter.config.discovery import (
    Discovery,
    DnsDiscovery,
    FileDiscovery,
    KubernetesDiscovery,
)
from expediter.config.environment import (
    ENV_PREFIX,
    cache_dir,
    child_environment,
    environment,
)
from expediter.config.fleet import (
    Config,
    FleetConfig,
)
from expediter.config.gateway import (
    GatewayConfig,
    TenancyConfig,
    TenantConfig,
    WorkerEndpoint,
)
from expediter.config.health import (
    HealthConfig,
    RetryConfig,
)
from expediter.config.operations import (
    AccessLogConfig,
    AdminConfig,
    TlsConfig,
    WorkerTlsConfig,
)
from expediter.config.routing import (
    DynamoConfig,
    PolicyName,
    PrebleConfig,
    RoutingConfig,
    SglangConfig,
    StickyConfig,
)
from expediter.config.section import (
    Fraction,
    NotNegative,
    Port,
    Positive,
    Seconds,
    Section,
)
from expediter.config.worker import (
    EngineConfig,
    KVCacheConfig,
    SchedulerConfig,
    WorkerConfig,
)

__all__ = [
    "ENV_PREFIX",
    "AccessLogConfig",
    "AdminConfig",
    "Config",
    "DisaggregationConfig",
    "Discovery",
    "DnsDiscovery",
    "DynamoConfig",
    "EngineConfig",
    "FileDiscovery",
    "FleetConfig",
    "Fraction",
    "GatewayConfig",
    "HealthConfig",
    "KVCacheConfig",
    "KubernetesDiscovery",
    "NotNegative",
    "PolicyName",
    "Port",
    "Positive",
    "PrebleConfig",
    "RebalanceConfig",
    "RetryConfig",
    "RoutingConfig",
    "SchedulerConfig",
    "Seconds",
    "Section",
    "SglangConfig",
    "StickyConfig",
    "TenancyConfig",
    "TenantConfig",
    "TlsConfig",
    "WorkerConfig",
    "WorkerEndpoint",
    "WorkerTlsConfig",
    "cache_dir",
    "child_environment",
    "environment",
]
