"""The lab, alone on a port."""

import socket
from collections.abc import Callable

import uvicorn

from expediter.assemble.policies import build_policy
from expediter.errors import ConfigError

GRACE_SECONDS = 1


def run_lab(*, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve until told to end; `announce` gets the page's address once it can be opened."""
    # Only here, because a gateway has no use for numpy.
    from expediter.lab.routes import create_lab_app

    with _listening(host, port) as listener:
        config = uvicorn.Config(
            create_lab_app(build_policy=build_policy),
            log_level="warning",
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        address, number = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        announce(f"http://{shown}:{number}/lab")
        uvicorn.Server(config).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from None
