"""TLS on both sides: the gateway's certificate for clients, trust in workers' certificates.

A context's certificate can be loaded again while it is in use: connections made from then on get
the new one.
"""

import ssl
from urllib.parse import urlsplit

from expediter.config import TlsConfig, WorkerEndpoint, WorkerTlsConfig
from expediter.errors import ConfigError


def client_tls(config: TlsConfig) -> ssl.SSLContext:
    """What clients are met with; raises ConfigError if the files are no pair."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, config)
    return context


def load_certificate(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Use these files from now on; raises ConfigError, and those before stay in use."""
    try:
        context.load_cert_chain(config.certificate, config.key)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"gateway.tls: {config.certificate} and {config.key} cannot be used: {reason}"
        ) from None


def worker_tls(config: WorkerTlsConfig) -> ssl.SSLContext:
    """How https:// workers are met; raises ConfigError if the authorities cannot be read."""
    try:
        context = ssl.create_default_context(cafile=config.ca)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"gateway.worker-tls.ca: {config.ca}: {reason}") from None
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def speaks_tls(endpoint: WorkerEndpoint) -> bool:
    """Whether the worker's URL is https."""
    return urlsplit(endpoint.url).scheme == "https"
