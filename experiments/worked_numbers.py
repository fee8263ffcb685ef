"""The worked numbers of a 70B fleet, and the tests that hold them.

Sizes and pools are computed here anew by the package's own code; the eight replicas' hits are
those of `tests/simulation/test_worked_numbers.py`, where the real policies find them on the
virtual clock.
"""

from expediter.load import WorkerId
from expediter.model_spec import ModelSpec
from expediter.routing.hash_ring import HashRing
from experiments.running import Row, Table

LLAMA = ModelSpec(name="llama-70b", num_layers=80, num_kv_heads=8, head_size=128)
SIZE = "planner/test_size_plan.py"
FLEET = "simulation/test_worked_numbers.py"


def run(*, quick: bool) -> list[Table]:  # noqa: ARG001 - it takes no time
    """One table."""
    token = LLAMA.kv_bytes_per_token
    rows: list[Row] = [
        ("KV a token, fp16, KiB", token / 1024, 320, SIZE),
        ("system prompt of 2,000 tokens, MB", 2000 * token / 1e6, 655, SIZE),
        ("history of 3,000 tokens, MB", 3000 * token / 1e6, 983, SIZE),
        ("cached of 6,000, random, 8 replicas", 2000 + 3000 / 8, 2375, FLEET),
        ("tokens/s to compute at 20/s, random", 20 * (6000 - 2375), 72_500, FLEET),
        ("tokens/s to compute at 20/s, cache-aware", 20 * 1000, 20_000, FLEET),
        ("8,000 tokens, GB", 8000 * token / 1e9, 2.62, SIZE),
        ("8,000 tokens over NVLink, ms", 8000 * token / 8 / 450e9 * 1e3, 0.73, SIZE),
        ("8,000 tokens over 8 NICs, ms", 8000 * token / 8 / 50e9 * 1e3, 6.55, SIZE),
        ("8,000 tokens over one NIC, ms", 8000 * token / 50e9 * 1e3, 52.4, SIZE),
        ("100,000 tokens over 8 NICs, ms", 100_000 * token / 8 / 50e9 * 1e3, 82, SIZE),
        ("16,000 tokens over 8 NICs, ms", 16_000 * token / 8 / 50e9 * 1e3, 13.1, SIZE),
        ("prefill replicas, 20/s of 3,000", 20 * 3000 * 0.1e-3, 6, SIZE),
        ("decode replicas, 300 out in 40 ms", 20 * 300 * 0.04 / ((40 - 20) / 0.2), 2.4, SIZE),
        ("goodput a GPU, 2 prefill + 1 decode", min(2 * 5.6, 10) / 3, 3.33, SIZE),
        ("keys moved to a ninth worker, %", _moved(), 11.1, "routing/test_policy_sticky.py"),
    ]
    columns = ("what", "ours", "theirs", "test")
    return [Table(title="Worked numbers", columns=columns, rows=rows)]


def _moved() -> float:
    ring = HashRing(num_points=100)
    for number in range(8):
        ring.add(WorkerId(f"worker-{number}"))
    keys = [f"key {number}".encode() for number in range(5000)]
    before = [ring.owner(key) for key in keys]
    ring.add(WorkerId("worker-8"))
    changed = sum(ring.owner(key) != owner for key, owner in zip(keys, before, strict=True))
    return round(100 * changed / len(keys), 1)
