"""A deployment as things to run: a gateway's settings, and commands that start its workers.

GPUs are given out node by node, an instance's beside each other; pools take turns, so that an
instance that prefills and one that decodes stand on the same node where they can.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

import tomli_w

from expediter.load import WorkerRole
from expediter.planner.deployment import Deployment, Instance, Pool

FIRST_PORT = 8001
BOOTSTRAP_PORT = 8998
HANDOVER_PORT = 5600
NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One instance: where it stands and what it does. `gpus` are numbered within `node`."""

    name: str
    role: WorkerRole
    pool: Pool
    node: int
    num_nodes: int
    gpus: range
    port: int

    @property
    def instance(self) -> Instance:
        """How the model is cut."""
        return self.pool.instance

    @property
    def host(self) -> str:
        """A name to be replaced by the node's own."""
        return f"node-{self.node}"


def processes(deployment: Deployment, *, gpus_per_node: int) -> list[Process]:
    """Every instance with GPUs of its own."""
    found: list[Process] = []
    free = 0  # the first GPU that is free, counted over all nodes
    for number, (role, pool) in enumerate(_in_turn(deployment)):
        num_gpus = pool.instance.num_gpus
        room = gpus_per_node - free % gpus_per_node
        if num_gpus > room and (num_gpus <= gpus_per_node or room < gpus_per_node):
            free += room
        node, first = divmod(free, gpus_per_node)
        here = min(num_gpus, gpus_per_node)
        found.append(
            Process(
                name=f"{role if role is not WorkerRole.BOTH else 'worker'}-{number}",
                role=role,
                pool=pool,
                node=node,
                num_nodes=-(-num_gpus // gpus_per_node),
                gpus=range(first, first + here),
                port=FIRST_PORT + number,
            )
        )
        free += num_gpus
    return found


def gateway_settings(found: list[Process], *, policy: str) -> str:
    """A file for `expediter serve --config`."""
    workers = [
        {
            "url": f"http://{process.host}:{process.port}",
            "worker-id": process.name,
            "role": str(process.role),
        }
        for process in found
    ]
    return tomli_w.dumps({"gateway": {"workers": workers, "routing": {"policy": policy}}})


def commands(found: list[Process], *, model: str) -> str:
    """A script that shows how to start each worker, with vLLM and with SGLang."""
    lines = [
        "# Each worker on its node, with one engine or the other; then, before them,",
        "#   expediter serve --config THE_OTHER_FILE",
        "# Replace the names of nodes and, if it is not one, the model's.",
    ]
    for process in found:
        nodes = f", the first of {process.num_nodes} nodes" if process.num_nodes > 1 else ""
        lines += ["", f"# {process.name} on {process.host}{nodes}"]
        lines += ["# vLLM:", _vllm(process, model), "# SGLang:", _sglang(process, model)]
    return "\n".join(lines) + "\n"


def _in_turn(deployment: Deployment) -> Iterator[tuple[WorkerRole, Pool]]:
    if deployment.decode is None:
        pool = deployment.prefill
        yield from ((WorkerRole.BOTH, pool) for _ in range(pool.num_instances))
        return
    first = [(WorkerRole.PREFILL, deployment.prefill)] * deployment.prefill.num_instances
    second = [(WorkerRole.DECODE, deployment.decode)] * deployment.decode.num_instances
    for pair in zip_longest(first, second):
        yield from (each for each in pair if each is not None)


def _vllm(process: Process, model: str) -> str:
    events = json.dumps(
        {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{process.port + 1000}",
            "replay_endpoint": f"tcp://*:{process.port + 2000}",
        },
        separators=(",", ":"),
    )
    parts = [
        _devices(process),
        f"vllm serve {model} --port {process.port}",
        f"--tensor-parallel-size {process.instance.tp}",
        f"--pipeline-parallel-size {process.instance.pp}",
        f"--max-num-batched-tokens {_budget(process)}",
        f"--max-num-seqs {process.pool.scheduler.max_running}",
        "--enable-prompt-tokens-details",
        f"--kv-events-config '{events}'",
    ]
    if process.role is not WorkerRole.BOTH:
        parts.insert(1, f"VLLM_NIXL_SIDE_CHANNEL_PORT={HANDOVER_PORT + process.port - FIRST_PORT}")
        parts.append(f"--kv-transfer-config '{NIXL}'")
    return _joined(parts)


def _sglang(process: Process, model: str) -> str:
    parts = [
        _devices(process),
        f"python -m sglang.launch_server --model-path {model} --port {process.port}",
        f"--tp-size {process.instance.tp}",
        f"--pp-size {process.instance.pp}",
        f"--chunked-prefill-size {_budget(process)}",
        f"--max-running-requests {process.pool.scheduler.max_running}",
    ]
    if process.role is not WorkerRole.BOTH:
        port = BOOTSTRAP_PORT + process.port - FIRST_PORT
        parts.append(f"--disaggregation-mode {process.role}")
        parts.append(f"--disaggregation-bootstrap-port {port}")
    return _joined(parts)


def _budget(process: Process) -> int:
    """A prefill worker takes whole prompts: a budget that holds one."""
    scheduler = process.pool.scheduler
    return scheduler.max_batched_tokens if scheduler.chunked_prefill else 8192


def _devices(process: Process) -> str:
    return f"CUDA_VISIBLE_DEVICES={','.join(map(str, process.gpus))}"


def _joined(parts: list[str]) -> str:
    return " \\\n    ".join(parts)
