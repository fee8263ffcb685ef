"""Rooflines by name, models from their own configuration, and Splitwise's measurements."""

import json
from pathlib import Path
from typing import Any

import pytest

from expediter.errors import ConfigError
from expediter.scheduling.output import PromptChunk, StepWork
from expediter.simulation.catalog import named_cost
from expediter.simulation.models import named_model
from expediter.simulation.roofline import GPUS, MODELS, Roofline
from expediter.simulation.splitwise import load_splitwise

LLAMA3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
LLAMA2_13B = {
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "vocab_size": 32000,
}


def folder(path: Path, config: dict[str, Any]) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(("config", "name"), [(LLAMA3_8B, "llama3-8b"), (LLAMA2_13B, "llama2-13b")])
def test_parameters_are_counted_from_the_shape(
    tmp_path: Path, config: dict[str, Any], name: str
) -> None:
    found, known = named_model(str(folder(tmp_path, config))), MODELS[name]
    assert found.num_params == pytest.approx(known.num_params, rel=0.002)
    assert found.num_heads == known.num_heads
    assert found.spec.kv_bytes_per_token == known.spec.kv_bytes_per_token


def test_a_tied_head_counts_once(tmp_path: Path) -> None:
    untied = named_model(str(folder(tmp_path, LLAMA3_8B))).num_params
    config = {**LLAMA3_8B, "tie_word_embeddings": True}
    tied = named_model(str(folder(tmp_path, config))).num_params
    assert untied - tied == 128256 * 4096


def test_a_roofline_is_named_by_model_and_gpus(tmp_path: Path) -> None:
    known = Roofline(model=MODELS["llama3-8b"], gpu=GPUS["l40s"], num_gpus=2)
    assert named_cost("roofline:llama3-8b:2xl40s") == known
    assert named_cost("roofline:llama3-8b:h100") == Roofline(
        model=MODELS["llama3-8b"], gpu=GPUS["h100"]
    )
    own = named_cost(f"roofline:{folder(tmp_path, LLAMA3_8B)}:2xl40s")
    work = StepWork([PromptChunk(900, 100)], 8, 8000)
    assert own.seconds(work) == pytest.approx(known.seconds(work), rel=0.005)


@pytest.mark.parametrize("name", ["roofline:", "roofline:llama3-8b", "roofline:llama3-8b:0xh100"])
def test_a_roofline_that_names_no_gpus_says_what_it_should(name: str) -> None:
    with pytest.raises(ConfigError, match="MODEL:NxGPU"):
        named_cost(name)


def test_splitwise_measured_these_times(traces: Path) -> None:
    path = traces / "splitwise" / "perf_model.csv"
    for hardware, prompts, token in (
        ("h100-80gb", (53, 137, 845), 30),
        ("a100-80gb", (93, 274, 1550), 45),
    ):
        cost = load_splitwise(path, model="llama2-70b", hardware=hardware, tensor_parallel=8)
        for num_tokens, expected in zip((512, 2048, 8192), prompts, strict=True):
            work = StepWork([PromptChunk(num_tokens, 0)])
            # 8,192 tokens of one prompt; the median is over batches of shorter ones too.
            assert cost.seconds(work) * 1e3 == pytest.approx(expected, rel=0.16)
        assert cost.seconds(StepWork((), 1, 512)) * 1e3 == pytest.approx(token, rel=0.1)
        mixed = StepWork([PromptChunk(512, 0)], 4, 2048)
        assert cost.seconds(mixed) == pytest.approx(
            1.1 * cost.seconds(StepWork([PromptChunk(512, 0)]))
        )
        assert cost.seconds(StepWork()) == 0
    with pytest.raises(ConfigError, match="TP 3"):
        load_splitwise(path, model="llama2-70b", hardware="h100-80gb", tensor_parallel=3)


def test_a_file_that_is_not_splitwises_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("model,hardware\nllama2-70b,h100\n")
    for name, complaint in (("a.csv", "performance model"), ("b.csv", "No such file")):
        with pytest.raises(ConfigError, match=complaint):
            load_splitwise(tmp_path / name, model="llama2-70b", hardware="h100", tensor_parallel=8)
