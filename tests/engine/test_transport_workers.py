"""Real workers that move KV by one transport each: the same tokens, and nothing computed twice."""

import importlib.util
import random
from pathlib import Path

import pytest
from real_workers import handed_over, real_workers
from test_tensor_parallel_workers import write_tokenizer
from tiny_models import Tiny, write_folder

from expediter.transfer.transports import TransportKind

TINY = Tiny(num_layers=3, num_heads=6, num_kv_heads=3)
HAS_NIXL = importlib.util.find_spec("nixl") is not None
KINDS = [
    pytest.param(
        kind,
        marks=pytest.mark.skipif(
            kind is TransportKind.NIXL and not HAS_NIXL, reason="NIXL is not installed"
        ),
    )
    for kind in TransportKind
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_is_handed_over(
    kind: TransportKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways, at once; a longer prompt goes on from what both have cached of the first."""
    monkeypatch.setenv("EXPEDITER_WORKER__TRANSFER__TRANSPORTS", f'["{kind}"]')
    model = write_folder(tmp_path, TINY, TINY.tensors(seed=7))
    write_tokenizer(model)
    rng = random.Random(1)
    with real_workers(model, tmp_path, {"one": 1, "other": 1}) as workers:
        for source, target in (("one", "other"), ("other", "one")):
            prompt = rng.choices(range(95), k=300)
            for num_cached, given in ((0, prompt), (288, [*prompt, *rng.choices(range(95), k=90)])):
                expected = workers[source].tokens(given, max_tokens=12, cache_salt="alone")
                answer = handed_over(workers[source], workers[target], given, max_tokens=12)
                assert answer["choices"][0]["token_ids"] == expected
                transfer = answer["kv_transfer"]
                assert transfer["failure"] is None
                assert transfer["first_token"] == "prefill"
                assert len(given) - num_cached - 16 <= transfer["tokens"] <= len(given) - num_cached
