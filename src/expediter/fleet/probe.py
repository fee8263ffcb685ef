"""Is a server up? One GET on this machine, without the proxies of the environment."""

import asyncio
import http.client
from urllib.parse import urlsplit

PROBE_TIMEOUT_SECONDS = 5.0


async def is_healthy(url: str) -> bool:
    """Whether `url` answers 200; a server that cannot be reached is not healthy."""
    return await asyncio.to_thread(_answers, url)


def _answers(url: str) -> bool:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=PROBE_TIMEOUT_SECONDS
    )
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
