"""Figures for people: three digits, and a unit they have heard of."""

_DECIMAL = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size(num_bytes: float) -> str:
    """Bytes: in KiB where they are few and come out whole, as KV per token does."""
    if 0 < num_bytes < 1 << 24 and num_bytes % 1024 == 0:
        return f"{num_bytes / 1024:,.0f} KiB"
    for factor, unit in _DECIMAL:
        if num_bytes >= factor:
            return f"{_digits(num_bytes / factor)} {unit}"
    return f"{num_bytes:,.0f} B"


def speed(bytes_per_second: float) -> str:
    """Bytes a second."""
    for factor, unit in _DECIMAL:
        if bytes_per_second >= factor:
            return f"{_digits(bytes_per_second / factor)} {unit}/s"
    return f"{bytes_per_second:,.0f} B/s"


def milliseconds(seconds: float) -> str:
    """A time, in seconds from ten on."""
    return f"{seconds:,.1f} s" if seconds >= 10 else f"{_digits(seconds * 1e3)} ms"


def percent(share: float) -> str:
    """A share of one."""
    return f"{100 * share:.{0 if share >= 0.095 else 1}f} %"


def big(count: float) -> str:
    """A count with thousands apart."""
    return f"{count:,.0f}"


def _digits(value: float) -> str:
    """Three digits, no exponent."""
    return f"{value:,.{max(0, 2 - len(str(int(value))) + 1)}f}"
