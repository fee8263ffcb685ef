"""A worker's load in Prometheus' words, under vLLM's and SGLang's names.

    vLLM   vllm:num_requests_running, vllm:num_requests_waiting, vllm:kv_cache_usage_perc,
           vllm:cache_config_info{block_size, num_gpu_blocks},
           vllm:lora_requests_info{running_lora_adapters, waiting_lora_adapters} (newest counts)
    SGLang sglang:num_running_reqs, sglang:num_queue_reqs, sglang:token_usage,
           sglang:page_size and sglang:num_pages, or in older releases
           sglang:cache_config_info{page_size, num_pages}

A page is a hundred kilobytes, a dozen lines of it matter: they are found by name, and nothing else
is parsed. Engines of one worker (data parallel ranks) add up; SGLang's tensor parallel ranks and
its counts by priority say the same again, and are skipped.
"""

import re
from collections.abc import Iterator, Mapping

import msgspec

_LABEL = re.compile(rb'(\w+)="((?:[^"\\]|\\.)*)"')


class ReportedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself; None where it does not say. Counts are requests."""

    num_running: int
    num_waiting: int
    kv_usage: float | None = None  # 0 to 1, of its fullest engine
    capacity_tokens: int | None = None
    adapters: frozenset[str] = frozenset()  # LoRA adapters of its requests

    @property
    def num_requests(self) -> int:
        """Running or waiting, whoever sent them."""
        return self.num_running + self.num_waiting


_Sample = tuple[Mapping[bytes, bytes], float]


def parse_load(page: bytes) -> ReportedLoad | None:
    """The load on a page of metrics; None if it is not there."""
    page = b"\n" + page
    for names in (_VLLM, _SGLANG):
        running, waiting, usage = (list(_samples(page, name)) for name in names)
        if running or waiting:
            return ReportedLoad(
                num_running=int(sum(value for _, value in running)),
                num_waiting=int(sum(value for _, value in waiting)),
                kv_usage=max((value for _, value in usage), default=None),
                capacity_tokens=_capacity(page),
                adapters=_adapters(page),
            )
    return None


_VLLM = (b"vllm:num_requests_running", b"vllm:num_requests_waiting", b"vllm:kv_cache_usage_perc")
_SGLANG = (b"sglang:num_running_reqs", b"sglang:num_queue_reqs", b"sglang:token_usage")


def _samples(page: bytes, name: bytes) -> Iterator[_Sample]:
    """Labels and value of each of a metric's lines that counts; `page` begins with a newline."""
    start = page.find(b"\n" + name)
    while start >= 0:
        start += 1
        end = page.find(b"\n", start)
        line = page[start : end if end >= 0 else len(page)]
        sample = _sample(line[len(name) :])
        if sample is not None:
            yield sample
        start = page.find(b"\n" + name, start)


def _sample(rest: bytes) -> _Sample | None:
    """What follows a name on its line: labels, value, maybe a timestamp."""
    labels: dict[bytes, bytes] = {}
    if rest.startswith(b"{"):
        inside, closing, rest = rest[1:].rpartition(b"}")
        if not closing:
            return None
        labels = dict(_LABEL.findall(inside))
    elif not rest.startswith((b" ", b"\t")):
        return None  # another metric, whose name only begins like this one
    if labels.get(b"tp_rank", b"0") != b"0" or labels.get(b"priority"):
        return None
    try:
        value = float(rest.split()[0])
    except (ValueError, IndexError):
        return None
    return (labels, value) if value >= 0 and value != float("inf") else None


def _capacity(page: bytes) -> int | None:
    """Tokens that all engines' KV memory holds."""
    for name, size, count in (
        (b"vllm:cache_config_info", b"block_size", b"num_gpu_blocks"),
        (b"sglang:cache_config_info", b"page_size", b"num_pages"),
    ):
        pairs = [
            (labels.get(size, b""), labels.get(count, b"")) for labels, _ in _samples(page, name)
        ]
        tokens = sum(int(a) * int(b) for a, b in pairs if a.isdigit() and b.isdigit())
        if tokens:
            return tokens
    sizes = [value for _, value in _samples(page, b"sglang:page_size")]
    pages = [value for _, value in _samples(page, b"sglang:num_pages")]
    return int(sum(map(float.__mul__, sizes, pages))) or None


def _adapters(page: bytes) -> frozenset[str]:
    """Adapters of running and waiting requests, as the newest line of `lora_requests_info` says."""
    newest = max(_samples(page, b"vllm:lora_requests_info"), key=lambda s: s[1], default=None)
    if newest is None:
        return frozenset()
    names = (newest[0].get(k, b"") for k in (b"running_lora_adapters", b"waiting_lora_adapters"))
    text = b",".join(names).decode("utf-8", "replace")
    return frozenset(filter(None, (name.strip() for name in text.split(","))))
