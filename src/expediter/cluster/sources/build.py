"""A source of workers from its settings."""

from expediter.cluster.sources.dns import DnsSource
from expediter.cluster.sources.file import FileSource
from expediter.cluster.sources.follow import WorkerSource
from expediter.cluster.sources.kubernetes import KubernetesSource
from expediter.config.discovery import (
    Discovery,
    DnsDiscovery,
    FileDiscovery,
    KubernetesDiscovery,
)


def build_source(config: Discovery) -> WorkerSource:
    """The source of this kind; ConfigError if a library it needs is not installed."""
    match config:
        case FileDiscovery():
            return FileSource(config)
        case DnsDiscovery():
            return DnsSource(config)
        case KubernetesDiscovery():
            return KubernetesSource(config)
