"""Settings of where a gateway finds its workers, besides those it is given."""

from typing import Literal

from expediter.config.section import Port, Seconds, Section


class FileDiscovery(Section, frozen=True, kw_only=True, tag_field="kind", tag="file"):
    """A file with a list of workers, read again whenever it changes."""

    path: str
    poll_seconds: Seconds = 1.0


class DnsDiscovery(Section, frozen=True, kw_only=True, tag_field="kind", tag="dns"):
    """A name's addresses, each with `port`; or with `record = "srv"` its SRV records."""

    name: str
    record: Literal["address", "srv"] = "address"
    port: Port = 8000
    scheme: Literal["http", "https"] = "http"
    nameserver: str | None = None  # host or host:port; by default the system's
    poll_seconds: Seconds = 5.0


class KubernetesDiscovery(Section, frozen=True, kw_only=True, tag_field="kind", tag="kubernetes"):
    """The ready endpoints of a service, followed as they change.

    Without `kubeconfig` the gateway has to run in the cluster. `port_name` chooses among the
    service's ports; by default it is the first.
    """

    service: str
    namespace: str = "default"
    port_name: str | None = None
    scheme: Literal["http", "https"] = "http"
    kubeconfig: str | None = None


Discovery = FileDiscovery | DnsDiscovery | KubernetesDiscovery
