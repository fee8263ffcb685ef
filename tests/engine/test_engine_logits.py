"""Logits against a dense reference that knows neither cache nor blocks."""

from pathlib import Path

import pytest
import torch
from driving import NUM_BLOCKS, Driven, blocks_for, load, run
from tiny_models import Tiny, reference_logits, write_folder

VARIANTS = {
    "grouped heads, tied": Tiny(),
    "one KV head, untied": Tiny(num_kv_heads=1, tied=False),
    "as many KV heads as heads": Tiny(num_kv_heads=4),
    "heads wider than hidden / heads": Tiny(head_size=32, theta=500.0),
    "Llama with every bias": Tiny(qkv_bias=True, output_bias=True, mlp_bias=True),
    "Qwen2": Tiny(model_type="qwen2", qkv_bias=True),
    "Mistral": Tiny(model_type="mistral", extra={"sliding_window": None}),
}
# Of a log probability, where they span about 20: 8 bits of every weight, sum and score. On
# SmolLM2 this engine and transformers are equally far from float32 (mean KL 0.0015 and 0.0013).
BFLOAT16_TOLERANCE = 0.5


def prompt_of(tiny: Tiny, num_tokens: int) -> list[int]:
    generator = torch.Generator().manual_seed(num_tokens)
    return torch.randint(tiny.vocab_size, (num_tokens,), generator=generator).tolist()


async def logprobs_of(path: Path, dtype: str, prompt: list[int], chunk_size: int) -> torch.Tensor:
    """The engine's log probabilities for the token after `prompt`."""
    executor = load(path, dtype=dtype)
    sequence = Driven(
        name="a",
        token_ids=prompt,
        block_ids=list(range(NUM_BLOCKS))[::-1][: len(blocks_for(len(prompt) + 1))],
        num_output_tokens=1,
        chunk_size=chunk_size,
        num_logprobs=executor.vocab_size,
    )
    await run(executor, [sequence])
    await executor.close()
    found = torch.empty(executor.vocab_size)
    for entry in sequence.outputs[0].logprobs:
        found[entry.token_id] = entry.logprob
    return found


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("num_tokens", "chunk_size"), [(1, 1), (150, 150), (201, 67), (560, 559)])
async def test_float32_logits_equal_the_dense_reference(
    tmp_path: Path, variant: str, num_tokens: int, chunk_size: int
) -> None:
    tiny = VARIANTS[variant]
    tensors = tiny.tensors()
    prompt = prompt_of(tiny, num_tokens)
    path = write_folder(tmp_path, tiny, tensors)
    expected = reference_logits(tiny, tensors, prompt)[-1].log_softmax(-1)
    found = await logprobs_of(path, "float32", prompt, chunk_size)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)


async def test_bfloat16_logits_stay_within_a_half(tmp_path: Path) -> None:
    tiny = Tiny()
    tensors = tiny.tensors()
    path = write_folder(tmp_path, tiny, tensors)
    for num_tokens in (1, 70, 200):
        prompt = prompt_of(tiny, num_tokens)
        expected = reference_logits(tiny, tensors, prompt)[-1].log_softmax(-1)
        found = await logprobs_of(path, "bfloat16", prompt, 64)
        torch.testing.assert_close(found, expected, atol=BFLOAT16_TOLERANCE, rtol=0)
        assert (expected.exp() * (expected - found)).sum() < 0.02  # Kullback-Leibler
