"""Settings of the gateway's operator: the admin port, TLS, the access log."""

from typing import Annotated

import msgspec

from expediter.config.section import Port, Section


class AdminConfig(Section, frozen=True, kw_only=True):
    """The operator's own listener. Without a `token` it may only be on a loopback address."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Port | None = None  # the gateway's port and 1000; a free one if that is taken
    token: Annotated[str, msgspec.Meta(min_length=16, pattern="^[!-~]+$")] | None = None


class TlsConfig(Section, frozen=True, kw_only=True):
    """TLS for clients: PEM files, the certificate with its chain. Read again on SIGHUP."""

    certificate: str
    key: str


class WorkerTlsConfig(Section, frozen=True, kw_only=True):
    """How https:// workers are trusted: by the system's authorities, or by those of `ca`."""

    ca: str | None = None
    verify: bool = True


class AccessLogConfig(Section, frozen=True, kw_only=True):
    """One JSON line a request, to a file or to standard output (`-`)."""

    path: Annotated[str, msgspec.Meta(min_length=1)]
