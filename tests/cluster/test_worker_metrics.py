"""What workers say of themselves, in vLLM's and SGLang's words."""

import pytest

from expediter.cluster.worker_metrics import parse_load

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a{b}\\"c"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="a",reason="capacity"} 4.0
vllm:num_requests_waiting{engine="1",model_name="a"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a"} 0.5
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000",cpu="None"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="1000",cpu="None"} 1.0
vllm:lora_requests_info{max_lora="2",running_lora_adapters="old",waiting_lora_adapters=""} 1.7e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="x,y",waiting_lora_adapters="z"} 1.8e+09
"""

SGLANG = b"""sglang:num_running_reqs{model_name="m",tp_rank="0",priority=""} 5.0
sglang:num_running_reqs{model_name="m",tp_rank="0",priority="1"} 5.0
sglang:num_running_reqs{model_name="m",tp_rank="1",priority=""} 5.0
sglang:num_queue_reqs{model_name="m",tp_rank="0",priority=""} 2.0
sglang:token_usage{model_name="m",tp_rank="0",priority=""} 0.28
sglang:page_size{model_name="m",tp_rank="0"} 16
sglang:num_pages{model_name="m",tp_rank="0"} 62500
"""


def test_the_engines_of_a_vllm_worker_add_up() -> None:
    load = parse_load(VLLM)
    assert load is not None
    assert (load.num_running, load.num_waiting, load.num_requests) == (5, 4, 9)
    assert load.kv_usage == 0.5
    assert load.capacity_tokens == 32_000
    assert load.adapters == {"x", "y", "z"}


def test_the_ranks_and_priorities_of_an_sglang_worker_do_not() -> None:
    load = parse_load(SGLANG)
    assert load is not None
    assert (load.num_running, load.num_waiting) == (5, 2)
    assert load.kv_usage == 0.28
    assert load.capacity_tokens == 1_000_000


def test_older_releases_of_sglang_tell_their_memory_in_labels() -> None:
    old = SGLANG[: SGLANG.index(b"sglang:page_size")]
    load = parse_load(old + b'sglang:cache_config_info{page_size="1",num_pages="999"} 1.0\n')
    assert load is not None
    assert load.capacity_tokens == 999


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html>404</html>",
        b"vllm:num_requests_running_total 3\n",
        b"vllm:num_requests_running\nvllm:num_requests_waiting{x 3",
        b"vllm:num_requests_running NaN\n",
        b"vllm:num_requests_running -1\n",
    ],
)
def test_a_page_without_a_load_is_none(page: bytes) -> None:
    assert parse_load(page) is None


def test_our_own_workers_page_is_understood() -> None:
    """The names that `worker/metrics.py` gives are those that are looked for."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    labels = ["model_name", "engine"]
    Gauge("vllm:num_requests_running", "", labels, registry=registry).labels("m", "0").set(7)
    load = parse_load(generate_latest(registry))
    assert load is not None
    assert load.num_running == 7
