"""The same workload in simulators of others that install from PyPI.

Today that is one: NVIDIA Dynamo's replay, in Rust (`pip install ai-dynamo-runtime==1.6.1` into a
virtual environment of its own). vidur's wheel comes without the profiles that it needs. Each is
run in its own interpreter with the block size, memory, batch limits, arrival rate and lengths of
`simulator.py`; the time of a step is its own model's. Seconds are processor seconds of all
threads, of the replay alone.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

DYNAMO = """
import json, sys, time
from dynamo._core import run_mocker_synthetic_trace_replay as replay
given = json.loads(sys.argv[1])
started = time.process_time()
replay(
    given["prompt_tokens"], given["output_tokens"], given["requests"],
    extra_engine_args={"engine": given["engine"]}, num_workers=given["workers"],
    router_mode=given["router"], request_rate=given["rate"],
)
print(json.dumps(time.process_time() - started))
"""
ROUTERS = {"dynamo, round robin": "round_robin", "dynamo, KV router": "kv_router"}
TIMEOUT_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is simulated."""

    num_workers: int
    block_size: int
    kv_tokens: int
    num_requests: int
    rate: float
    num_prompt_tokens: int
    num_output_tokens: int
    max_running: int = 256
    max_batched_tokens: int = 8192


def dynamo_seconds(python: Path, load: Load, *, router: str) -> float:
    """Processor seconds of one replay; CalledProcessError if it fails."""
    given = {
        "prompt_tokens": load.num_prompt_tokens,
        "output_tokens": load.num_output_tokens,
        "requests": load.num_requests,
        "workers": load.num_workers,
        "rate": load.rate,
        "router": router,
        "engine": {
            "block_size": load.block_size,
            "num_gpu_blocks": load.kv_tokens // load.block_size,
            "max_num_seqs": load.max_running,
            "max_num_batched_tokens": load.max_batched_tokens,
        },
    }
    answer = subprocess.run(
        [str(python), "-c", DYNAMO, json.dumps(given)],
        capture_output=True,
        check=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env={**os.environ, "DYN_LOG": "error"},
    )
    return float(answer.stdout.splitlines()[-1])
