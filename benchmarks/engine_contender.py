"""One engine under test, in its own process and virtual environment.

    PYTHON benchmarks/engine_contender.py expediter|transformers|vllm MODEL

Reads one JSON trial a line, {"prompts": [[ids]], "num_tokens": n}, and answers
{"first": seconds, "rest": seconds}: until every prompt has its first token, and from there
until every prompt has n. Tokens are greedy and never stop early. Only what the named engine
needs is imported, so any of them may be absent.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TextIO

Step = Callable[[list[list[int]], int, int], list[list[int]]]
Trial = Callable[[list[list[int]], int], tuple[float, float]]
KV_BYTES = 256 * 1024 * 1024
MAX_TOKENS_PER_STEP = 2048


def main() -> None:
    contenders = {"expediter": expediter, "transformers": transformers, "vllm": vllm}
    name, model = sys.argv[1:3]
    answers = take_stdout()
    trial = contenders[name](model)
    print(json.dumps({"ready": name}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        first, rest = trial(asked["prompts"], asked["num_tokens"])
        print(json.dumps({"first": first, "rest": rest}), file=answers, flush=True)


def take_stdout() -> TextIO:
    """Keep the real standard output for answers; whatever else prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def expediter(model: str) -> Trial:
    """Our executor, driven step by step."""
    import asyncio

    from expediter.config import EngineConfig, KVCacheConfig
    from expediter.engine.executor import load_executor
    from expediter.request import RequestId, SamplingParams
    from expediter.scheduling.output import ScheduledChunk, SchedulerOutput

    executor = load_executor(
        EngineConfig(model=model, num_threads=os.cpu_count()),
        KVCacheConfig(capacity_bytes=KV_BYTES),
    )
    sampling = SamplingParams(temperature=0, ignore_eos=True)
    loop = asyncio.new_event_loop()

    def step(prompts: list[list[int]], num_computed: int, num_blocks: int) -> list[list[int]]:
        names = [RequestId(str(number)) for number in range(len(prompts))]
        chunks = [
            ScheduledChunk(
                request_id=name,
                token_ids=prompt[num_computed:],
                num_new_tokens=len(prompt) - num_computed,
                num_computed_tokens=num_computed,
                block_ids=range(number * num_blocks, (number + 1) * num_blocks),
                samples=True,
                sampling=sampling,
            )
            for number, (name, prompt) in enumerate(zip(names, prompts, strict=True))
        ]
        total = sum(chunk.num_new_tokens for chunk in chunks)
        output = SchedulerOutput(chunks=chunks, num_new_tokens=total)
        tokens = loop.run_until_complete(executor.execute(output)).tokens
        return [[*p, tokens[name][0].token_id] for name, p in zip(names, prompts, strict=True)]

    return partial(_timed, step)


def _timed(step: Step, prompts: list[list[int]], num_tokens: int) -> tuple[float, float]:
    """Seconds to the first token of all prompts, and for the other tokens."""
    length = len(prompts[0])
    num_blocks = (length + num_tokens) // 16 + 1
    start = time.perf_counter()
    prompts = step(prompts, 0, num_blocks)
    first = time.perf_counter()
    for number in range(num_tokens - 1):
        prompts = step(prompts, length + number, num_blocks)
    return first - start, time.perf_counter() - first


def transformers(model: str) -> Trial:
    """Hugging Face transformers: its fastest attention on CPU, and its cache."""
    import torch
    from transformers import AutoModelForCausalLM

    network: Any = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.bfloat16, attn_implementation="sdpa"
    ).eval()

    def step(token_ids: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        with torch.inference_mode():
            output = network(
                input_ids=token_ids, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
        return output.logits[:, -1].argmax(-1, keepdim=True), output.past_key_values

    def trial(prompts: list[list[int]], num_tokens: int) -> tuple[float, float]:
        start = time.perf_counter()
        token_ids, cache = step(torch.tensor(prompts), None)
        first = time.perf_counter()
        for _ in range(num_tokens - 1):
            token_ids, cache = step(token_ids, cache)
        return first - start, time.perf_counter() - first

    return trial


def vllm(model: str) -> Trial:
    """vLLM in this process, stepped by hand; as tools run it on CPU, without its cache."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    engine: Any = LLM(
        model=model,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=4096,
        max_num_batched_tokens=MAX_TOKENS_PER_STEP,
        block_size=32,
        kv_cache_memory_bytes=KV_BYTES,
    ).llm_engine
    serial = iter(range(1 << 62))

    def trial(prompts: list[list[int]], num_tokens: int) -> tuple[float, float]:
        sampling = SamplingParams(
            temperature=0, ignore_eos=True, max_tokens=num_tokens, detokenize=False
        )
        start = time.perf_counter()
        for prompt in prompts:
            engine.add_request(str(next(serial)), TokensPrompt(prompt_token_ids=prompt), sampling)
        seen: set[str] = set()
        first = start
        while engine.has_unfinished_requests():
            seen.update(output.request_id for output in engine.step())
            if first == start and len(seen) == len(prompts):
                first = time.perf_counter()
        return first - start, time.perf_counter() - first

    return trial


if __name__ == "__main__":
    main()
