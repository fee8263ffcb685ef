"""A model that can be checked: its next token is a hash of all tokens before it.

The hash is kept slot by slot in a paged store, as KV is, and each token's hash needs the one
before it. A block that holds anything else than its name says shows as wrong tokens.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from expediter.config import KVCacheConfig, SchedulerConfig
from expediter.kvcache.events import KVCacheEvent
from expediter.kvcache.hashing import CacheNamespace
from expediter.kvcache.manager import KVCacheManager
from expediter.request import SampledToken, TokenLogprob
from expediter.scheduling.output import ModelOutput, ScheduledChunk, SchedulerOutput
from expediter.scheduling.scheduler import Scheduler
from expediter.tokenizer import Tokenizer
from expediter.tokenizer.chat_template import ChatTemplate
from expediter.tokenizer.token_bytes import byte_characters
from expediter.worker.handover.contract import Handover
from expediter.worker.worker import PublishEvents, Worker

BLOCK_SIZE = 4
EOS = 256
VOCAB_SIZE = 258
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


class HashModel:
    """An Executor. Its words are `letters`; with `script` the n-th new token is its n-th byte."""

    def __init__(self, *, letters: bytes = b"abcdefgh ", script: bytes | None = None) -> None:
        self.letters = letters
        self.script = script
        self.store: dict[int, int] = {}
        self.steps: list[SchedulerOutput] = []
        self.failures: list[Exception] = []  # thrown by the next steps
        self.may_run = asyncio.Event()
        self.may_run.set()

    @property
    def num_computed_tokens(self) -> int:
        return sum(step.num_new_tokens for step in self.steps)

    async def execute(self, output: SchedulerOutput) -> ModelOutput:
        self.steps.append(output)
        await asyncio.sleep(0)
        await self.may_run.wait()
        if self.failures:
            raise self.failures.pop(0)
        for chunk in output.chunks:
            self._compute(chunk)
        return ModelOutput(
            tokens={c.request_id: [self._sample(c)] for c in output.chunks if c.samples}
        )

    async def close(self) -> None:
        self.store.clear()

    def expected(self, prompt: Sequence[int], num_tokens: int, *, seed: int | None = None) -> bytes:
        """What it says after `prompt`, computed without any store."""
        state, said = 0, bytearray()
        for token_id in prompt:
            state = _mix(state, token_id)
        for place in range(num_tokens):
            said.append(self._next(state, seed, place))
            state = _mix(state, said[-1])
        return bytes(said)

    def _compute(self, chunk: ScheduledChunk) -> None:
        place = chunk.num_computed_tokens
        state = self.store[_slot(chunk, place - 1)] if place else 0
        for token_id in chunk.token_ids:
            state = self.store[_slot(chunk, place)] = _mix(state, token_id)
            place += 1

    def _sample(self, chunk: ScheduledChunk) -> SampledToken:
        last = chunk.num_computed_tokens + chunk.num_new_tokens - 1
        state, seed = self.store[_slot(chunk, last)], chunk.sampling.seed
        token_id = self._next(state, seed, len(chunk.output_token_ids))
        wanted = chunk.sampling.num_logprobs
        if wanted is None:
            return SampledToken(token_id=token_id)
        others = [TokenLogprob(token_id=i, logprob=-i / 100, rank=i) for i in range(1, wanted + 1)]
        own = TokenLogprob(token_id=token_id, logprob=-0.5, rank=1)
        return SampledToken(token_id=token_id, logprobs=(own, *others))

    def _next(self, state: int, seed: int | None, place: int) -> int:
        if self.script is not None:
            return self.script[place] if place < len(self.script) else EOS
        return self.letters[_mix(state, seed or 0) % len(self.letters)]


def _mix(state: int, token_id: int) -> int:
    return hash((state, token_id, 7)) & 0xFFFF_FFFF_FFFF


def _slot(chunk: ScheduledChunk, place: int) -> int:
    return chunk.block_ids[place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE


def byte_tokenizer() -> Tokenizer:
    """One token a byte, and two special ones; a token's id is its byte."""
    names = byte_characters()
    vocabulary = {names[byte]: byte for byte in range(256)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", "<|pad|>"])
    return Tokenizer(backend, eos_token_ids=frozenset({EOS}), chat_template=ChatTemplate(TEMPLATE))


@dataclass
class Rig:
    """A worker on a hash model, and what it published."""

    model: HashModel
    worker: Worker
    batches: list[list[KVCacheEvent]] = field(default_factory=list)

    @property
    def num_used_blocks(self) -> int:
        return self.worker.load().num_used_blocks


def build(
    model: HashModel | None = None,
    *,
    num_blocks: int = 256,
    max_model_len: int = 512,
    max_batched_tokens: int = 64,
    has_chunks: bool = True,
    publish: PublishEvents | None = None,
    handover: Handover | None = None,
) -> Rig:
    """`publish` gets the events, if given, instead of the rig's `batches`."""
    model = model or HashModel()
    kv_cache = KVCacheManager(
        KVCacheConfig(block_size=BLOCK_SIZE),
        num_blocks=num_blocks,
        namespace=CacheNamespace(model="hash"),
    )
    scheduler = Scheduler(
        SchedulerConfig(max_batched_tokens=max_batched_tokens),
        kv_cache=kv_cache,
        clock=lambda: 0.0,
        max_model_len=max_model_len,
        eos_token_ids=frozenset({EOS}),
        has_chunks=has_chunks,
    )
    batches: list[list[KVCacheEvent]] = []

    def keep(events: Sequence[KVCacheEvent]) -> None:
        batches.append(list(events))

    worker = Worker(scheduler=scheduler, executor=model, publish=publish or keep, handover=handover)
    return Rig(model, worker, batches)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that other tasks bring about."""
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 (what happens has no event)
            await asyncio.sleep(0.001)
