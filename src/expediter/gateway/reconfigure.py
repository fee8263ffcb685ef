"""What may change while a gateway runs, and what another set of settings means for its workers.

Changes are between the settings read before and those read now: whatever was changed by hand on
the admin port stays, unless the file says something new about it.
"""

from collections.abc import Mapping

from msgspec.structs import fields, replace

from expediter.cluster.membership import Membership, worker_id_of
from expediter.config import GatewayConfig, RoutingConfig, Section, WorkerEndpoint
from expediter.errors import ConfigError
from expediter.load import WorkerId

FIXED = (
    "host",
    "port",
    "tokenizer",
    "processes",
    "max_body_bytes",
    "max_header_bytes",
    "health_interval_seconds",
    "health",
    "disaggregation",
    "admin",
    "worker_tls",
)
FIXED_ROUTING = ("block_size", "assumed_blocks")

Endpoints = Mapping[WorkerId, WorkerEndpoint]


def settled(old: GatewayConfig, new: GatewayConfig) -> tuple[GatewayConfig, list[str]]:
    """`new` with what cannot change kept as in `old`, and the names of what was kept.

    TLS can get other files, but not be turned on or off.
    """
    kept = [name for name in FIXED if getattr(old, name) != getattr(new, name)]
    changes: dict[str, object] = {name: getattr(old, name) for name in kept}
    if (old.tls is None) != (new.tls is None):
        kept.append("tls")
        changes["tls"] = old.tls
    routing, kept_routing = settled_routing(old.routing, new.routing)
    changes["routing"] = routing
    return replace(new, **changes), [_key(name) for name in kept] + kept_routing


def settled_routing(old: RoutingConfig, new: RoutingConfig) -> tuple[RoutingConfig, list[str]]:
    """The same for placement: the index is made for blocks of one size."""
    kept = [name for name in FIXED_ROUTING if getattr(old, name) != getattr(new, name)]
    routing = replace(new, **{name: getattr(old, name) for name in kept})
    return routing, [f"routing.{_key(name)}" for name in kept]


def endpoints_of(config: GatewayConfig) -> Endpoints:
    """The workers by name; raises ConfigError if two have the same."""
    found: dict[WorkerId, WorkerEndpoint] = {}
    for endpoint in config.workers:
        worker_id = worker_id_of(endpoint)
        if worker_id in found:
            raise ConfigError(f"two workers are called {worker_id!r}")
        found[worker_id] = endpoint
    return found


def changed_workers(membership: Membership, old: Endpoints, new: Endpoints) -> list[WorkerEndpoint]:
    """Add and retire workers; returns those that take the place of one of the same name.

    They have to wait until the other is gone.
    """
    replacing = []
    for worker_id, endpoint in new.items():
        if old.get(worker_id) == endpoint:
            continue
        member = membership.members.get(worker_id)
        if member is None:
            membership.add(endpoint)
        elif member.endpoint == endpoint:
            membership.undrain(worker_id)
        else:
            replacing.append(endpoint)
    for worker_id in old.keys() - new.keys():
        if worker_id in membership.members:
            membership.retire(worker_id)
    return replacing


def _key(name: str) -> str:
    return name.replace("_", "-")


def redacted(config: Section) -> dict[str, object]:
    """Settings as plain values, under their keys in the file, without what must stay secret."""
    found: dict[str, object] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        found[field.encode_name] = _redacted(field.name, value)
    return found


SECRETS = frozenset({"token", "secret", "keys", "cache_salt", "worker_authorization"})
HIDDEN = "(secret)"


def _redacted(name: str, value: object) -> object:
    if name in SECRETS and value:
        return HIDDEN
    if isinstance(value, Section):
        return redacted(value)
    if isinstance(value, tuple):
        return [_redacted(name, item) for item in value]
    if name == "url" and isinstance(value, str) and "@" in value:
        scheme, separator, rest = value.partition("://")
        return f"{scheme}{separator}{HIDDEN}@{rest.rpartition('@')[2]}"
    return value
