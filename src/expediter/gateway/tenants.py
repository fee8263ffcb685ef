"""Tenants: who a request belongs to, and what that means for it.

A request names its tenant by an API key. Only hashes of keys are known here. Keys are long and
random, so one SHA-256 is enough: there is no dictionary to try.
"""

import hashlib
import hmac
import math
import secrets
from dataclasses import dataclass
from pathlib import Path

from expediter.clock import Clock
from expediter.config import TenancyConfig, TenantConfig
from expediter.errors import ConfigError, RequestError, RequestRejected, Unauthorized
from expediter.gateway.key_file import HASH_PREFIX, KeyFile
from expediter.gateway.limits import Lease, TenantLimits
from expediter.gateway.replies import Reply, error_body
from expediter.gateway.request import HttpRequest
from expediter.gateway.salting import salted, tenant_salt

_KEY_BYTES = 32


def make_key() -> tuple[str, str]:
    """A new API key, and its hash for the configuration."""
    key = f"xp-{secrets.token_urlsafe(_KEY_BYTES)}"
    return key, hash_key(key)


def hash_key(key: str) -> str:
    """A key as the configuration names it."""
    return HASH_PREFIX + hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant while the gateway runs."""

    tenant_id: str
    salt: str
    limits: TenantLimits


class Tenancy:
    """All tenants, by their keys; its memory is the configuration's and the key file's."""

    def __init__(
        self, config: TenancyConfig, *, clock: Clock, before: "Tenancy | None" = None
    ) -> None:
        """Tenants that were there `before` keep what they have in use of their limits.

        Raises ConfigError if two tenants cannot be told apart, one has no salt, or the key file
        cannot be used; nothing has changed then.
        """
        self._config = config
        self._clock = clock
        self._authorization = config.worker_authorization
        self._key_file = KeyFile(Path(config.key_file)) if config.key_file else None
        more = self._key_file.read() if self._key_file is not None else []
        _require_tenants(config, more)
        keys = [(key, t.tenant_id) for t in config.tenants for key in t.keys]
        keys += [(key, tenant_id) for tenant_id, key in more]
        _require_distinct([t.tenant_id for t in config.tenants], "tenant-id")
        _require_distinct([key for key, _ in keys], "key")
        _require_distinct([_salt(config, t) for t in config.tenants], "cache-salt")
        self._limits: dict[str, TenantLimits] = before._limits if before is not None else {}
        tenants = {t.tenant_id: self._tenant_from(t) for t in config.tenants}
        self._limits = {name: tenant.limits for name, tenant in tenants.items()}
        self._keys = [
            (bytes.fromhex(key.removeprefix(HASH_PREFIX)), tenants[tenant_id])
            for key, tenant_id in keys
        ]

    def num_running(self) -> dict[str, int]:
        """Requests in flight, by tenant."""
        return {tenant_id: limits.num_running for tenant_id, limits in self._limits.items()}

    def has_new_keys(self) -> bool:
        """Whether the key file is another than the one that was read."""
        return self._key_file is not None and self._key_file.has_changed()

    def reread(self) -> "Tenancy":
        """The same tenants with the key file as it is now; raises ConfigError."""
        return Tenancy(self._config, clock=self._clock, before=self)

    def _tenant_from(self, config: TenantConfig) -> Tenant:
        """A tenant; limits that exist already are told what is new."""
        assumed = self._config.assumed_output_tokens
        limits = self._limits.get(config.tenant_id)
        if limits is None:
            limits = TenantLimits(config, assumed_output_tokens=assumed, clock=self._clock)
        else:
            limits.configure(config, assumed_output_tokens=assumed)
        return Tenant(config.tenant_id, _salt(self._config, config), limits)

    def admit(self, request: HttpRequest) -> Lease:
        """Make the request its tenant's, which has one slot less until the lease ends.

        Salts the body and takes the key out of the headers. Raises RequestError.
        """
        tenant = self._tenant(request.header(b"authorization"))
        lease = tenant.limits.slot()
        try:
            if request.body:
                request.body = salted(request.body, tenant.salt)
        except BaseException:
            lease.end()
            raise
        request.headers = [h for h in request.headers if h[0] != b"authorization"]
        if self._authorization is not None:
            request.headers.append((b"authorization", self._authorization.encode()))
        return lease

    def check(self, request: HttpRequest) -> None:
        """Raises Unauthorized unless the request has a tenant's key."""
        self._tenant(request.header(b"authorization"))

    def _tenant(self, authorization: bytes | None) -> Tenant:
        scheme, _, key = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthorized("an API key is needed: Authorization: Bearer KEY")
        digest = hashlib.sha256(key.strip()).digest()
        found = None
        # All keys, whichever matches: the time tells nothing about them.
        for known, tenant in self._keys:
            if hmac.compare_digest(known, digest):
                found = tenant
        if found is None:
            raise Unauthorized("the API key is not known")
        return found


def refusal_reply(error: RequestError) -> Reply:
    """The answer to a request that was not admitted."""
    headers = []
    if isinstance(error, RequestRejected):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after))))
    elif isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    body = error_body(str(error), kind=error.kind, code=error.status, param=error.param)
    return Reply(status=error.status, body=body, headers=headers)


def _salt(config: TenancyConfig, tenant: TenantConfig) -> str:
    if tenant.cache_salt is not None:
        return tenant.cache_salt
    if config.secret is None:
        raise ConfigError(
            f"gateway.tenancy: {tenant.tenant_id} has no cache-salt, so a secret is needed"
        )
    return tenant_salt(config.secret, tenant.tenant_id)


def _require_tenants(config: TenancyConfig, keys: list[tuple[str, str]]) -> None:
    """A tenant that only the key file names would have no limits: more likely it is misspelt."""
    known = {tenant.tenant_id for tenant in config.tenants}
    for tenant_id, _ in keys:
        if tenant_id not in known:
            raise ConfigError(
                f"{config.key_file}: there is no tenant {tenant_id!r}; "
                f"there are {', '.join(sorted(known)) or 'none'}"
            )


def _require_distinct(values: list[str], what: str) -> None:
    if len(set(values)) < len(values):
        raise ConfigError(f"gateway.tenancy: a {what} is there twice")
