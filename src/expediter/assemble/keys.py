"""A new key for a tenant."""

from expediter.gateway.key_file import key_line
from expediter.gateway.tenants import make_key


def new_key(tenant_id: str) -> tuple[str, str]:
    """The key, which is kept nowhere, and the key file's line for it; raises ConfigError."""
    key, key_hash = make_key()
    return key, key_line(tenant_id, key_hash)
