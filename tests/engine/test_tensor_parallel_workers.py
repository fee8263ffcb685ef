"""Real workers of different tensor-parallel sizes: the same tokens, and ranks that end together."""

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import psutil
import pytest
from real_workers import STOP_SECONDS, RealWorker, eventually_gone, handed_over, real_workers
from tiny_models import Tiny, write_folder
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from expediter.config import cache_dir, environment
from expediter.engine.default_model import MEMBER
from expediter.tokenizer.loading import save_tokenizer
from expediter.tokenizer.tokenizer import Tokenizer

TINY = Tiny(num_layers=3, num_heads=6, num_kv_heads=3)
SIZES = {"p1": 1, "d1": 1, "p3": 3, "d3": 3}
STORY = "The river runs by the old stone bridge, and the lamp above it is never out. "


def write_tokenizer(folder: Path) -> None:
    """A token a character, from the space on."""
    vocabulary = {chr(32 + n): n for n in range(95)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    save_tokenizer(Tokenizer(backend, eos_token_ids=frozenset({95})), folder)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RealWorker]]:
    folder = write_folder(tmp_path_factory.mktemp("tiny"), TINY, TINY.tensors(seed=7))
    write_tokenizer(folder)
    with real_workers(folder, folder, SIZES) as found:
        yield found


def test_every_pair_of_sizes_gives_the_tokens_of_one_process(
    workers: dict[str, RealWorker],
) -> None:
    """Prompts of several steps; a second one goes on from what both have cached of the first."""
    rng = random.Random(1)
    for source, target in product(("p1", "p3"), ("d1", "d3")):
        assert workers[source].source()["tp_size"] == SIZES[source]
        prompt = rng.choices(range(95), k=110)
        for num_cached, given in ((0, prompt), (96, [*prompt, *rng.choices(range(95), k=90)])):
            expected = workers["p1"].tokens(given, max_tokens=12, cache_salt="alone")
            answer = handed_over(workers[source], workers[target], given, max_tokens=12)
            assert answer["choices"][0]["token_ids"] == expected
            assert answer["kv_transfer"]["failure"] is None
            moved = answer["kv_transfer"]["tokens"]
            assert 0 < moved <= len(given) - num_cached
            assert workers[target].tokens(given, max_tokens=12) == expected


def test_a_worker_says_how_it_is_split(workers: dict[str, RealWorker]) -> None:
    for name, size in SIZES.items():
        assert len(workers[name].ranks()) == size - 1
        lines = workers[name].http.get("/metrics").text.splitlines()
        [line] = [line for line in lines if line.startswith("expediter:tensor_parallel_size{")]
        assert line.endswith(f" {size}.0")


def test_a_worker_and_its_ranks_told_to_leave_at_once_leave_well(
    workers: dict[str, RealWorker],
) -> None:
    """As an init system does it. The worker answers what it has begun."""
    worker = workers["p3"]
    ranks = worker.ranks()
    for process in (*ranks, psutil.Process(worker.process.pid)):
        process.terminate()
    assert worker.process.wait(STOP_SECONDS) == 0
    assert eventually_gone(ranks)
    assert "error" not in worker.last_line.lower()


def test_a_rank_that_dies_ends_its_worker(workers: dict[str, RealWorker]) -> None:
    worker = workers["d3"]
    ranks = worker.ranks()
    ranks[0].kill()
    assert worker.process.wait(STOP_SECONDS) == 1
    assert worker.last_line == "error: rank 1 of 3 was ended by SIGKILL"
    assert eventually_gone(ranks)


def test_smollm2_says_the_same_split_or_not_and_handed_over(tmp_path: Path) -> None:
    model = cache_dir(environment()) / "models" / Path(MEMBER).name
    if not model.is_file():
        pytest.skip(f"no model at {model}; `expediter up` fetches it")
    with real_workers(model, tmp_path, {"one": 1, "three": 3}) as found:
        for source, target in (("one", "three"), ("three", "one")):
            prompt = f"From {source} to {target}. " + STORY * 3
            answer = handed_over(found[source], found[target], prompt, max_tokens=4)
            assert answer["kv_transfer"]["failure"] is None
            assert answer["kv_transfer"]["tokens"] == answer["usage"]["prompt_tokens"] > 48
            for worker in found.values():
                alone = worker.tokens(prompt, max_tokens=4, cache_salt="alone")
                assert alone == answer["choices"][0]["token_ids"]
