"""How fast bytes move: links by name, one way.

Datasheets quote NVLink and PCIe as the sum of both directions; a transfer of KV uses one, so
half of the headline is what counts. Network cards are quoted one way.
"""

from dataclasses import dataclass

from expediter.errors import ConfigError

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One link of a GPU or a host. `bytes_per_second` is one way; `source` is who says so."""

    name: str
    bytes_per_second: float
    latency_seconds: float = 0.0
    source: str = ""


_ONE_WAY = {
    "nvlink4": (450 * GB, "NVIDIA H100 SXM: 900 GB/s both ways"),
    "nvlink3": (300 * GB, "NVIDIA A100 SXM: 600 GB/s both ways"),
    "nvlink-nvl": (300 * GB, "NVIDIA H100 NVL: 600 GB/s both ways"),
    "pcie5": (64 * GB, "PCIe Gen5 x16: 128 GB/s both ways"),
    "pcie4": (32 * GB, "PCIe Gen4 x16: 64 GB/s both ways"),
    "nic400": (50 * GB, "400 Gb/s network card (NDR InfiniBand)"),
    "nic200": (25 * GB, "200 Gb/s network card (HDR InfiniBand)"),
    "nic100": (12.5 * GB, "100 Gb/s network card"),
    "nvme4": (7 * GB, "PCIe Gen4 x4 SSD, read"),
    "wifi": (0.0375 * GB, "300 Mb/s, assumed"),
}
LINKS = {
    name: Link(name=name, bytes_per_second=speed, source=source)
    for name, (speed, source) in _ONE_WAY.items()
}


def named_link(name: str) -> Link:
    """A built-in link, or a speed such as `12.5GB/s` or `100Gb/s`; else ConfigError."""
    link = LINKS.get(name)
    if link is not None:
        return link
    for unit, scale in _UNITS.items():
        if name.endswith(unit) and (speed := _number(name.removesuffix(unit))):
            return Link(name=name, bytes_per_second=speed * scale, source="as given")
    raise ConfigError(
        f"no link is called {name!r}; there are {', '.join(LINKS)}, and speeds one way "
        f"such as 25GB/s or 200Gb/s"
    )


_UNITS = {"GB/s": GB, "MB/s": 1e6, "Gb/s": GB / 8, "Mb/s": 1e6 / 8}


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None
