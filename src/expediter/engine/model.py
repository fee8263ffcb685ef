"""The decoder: a step's tokens in, the next token's logits out.

Every token of a step goes through every layer together; `attention.attend` alone knows that
they belong to different requests. A layer first writes its new keys and values into the
pool, then attends over the pool, so cached, chunked and fresh context are one case. Of a model
that is split over ranks this is one rank's part.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from expediter.engine.architecture import ModelConfig
from expediter.engine.attention import attend
from expediter.engine.batch import ForwardBatch
from expediter.engine.collectives import Collectives
from expediter.engine.kv_store import KVStore
from expediter.engine.operations import Operations
from expediter.engine.rope import Rope
from expediter.engine.weights import ModelWeights


class LlamaModel:
    """Weights and positions; the KV pool is the caller's. `config` says what this rank has."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        weights: ModelWeights,
        operations: Operations,
        rope: Rope,
        ranks: Collectives,
    ) -> None:
        self._config = config
        self._operations = operations
        self._ranks = ranks
        self._weights = weights
        self._rope = rope
        self.vocab_size = config.vocab_size
        self.device = weights.embedding.device
        self.dtype = weights.embedding.dtype

    def forward(
        self,
        batch: ForwardBatch,
        store: KVStore,
        *,
        on_layer: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        """Logits [sample row, vocabulary]; writes the KV of every token of the batch.

        `on_layer` is told in how many layers it is written, or will be once the device gets there.
        Only rank 0 has the logits of the whole vocabulary.
        """
        ranks, operations = self._ranks, self._operations
        hidden = functional.embedding(batch.token_ids, self._weights.embedding)
        rotation = self._rope.tables(batch.positions, hidden.dtype)
        last = self._config.num_layers - 1
        for index, layer in enumerate(self._weights.layers):
            heads = self._heads(layer.qkv(operations.normalize(hidden)))
            operations.place(heads, rotation, pool=store.slots[index], slots=batch.slots)
            if on_layer is not None:
                ranks.when_all_are_here(partial(on_layer, index + 1))
            if index == last and not batch.sampling:
                break
            attended = attend(self._queries(heads), store.pieces[index], batch).flatten(1)
            if index == last:  # nobody reads the other rows
                hidden, attended = hidden[batch.sample_rows], attended[batch.sample_rows]
            hidden += ranks.sum(layer.attention_output(attended))
            inner = operations.gate(layer.gate_up(operations.normalize(hidden)))
            hidden += ranks.sum(layer.down(inner))
        if not batch.sampling:
            ranks.meet()  # no sum came after the last layer's writing
            return hidden.new_empty(0, self.vocab_size)
        return ranks.join(self._weights.head(operations.normalize(hidden)))

    def _heads(self, rows: torch.Tensor) -> torch.Tensor:
        """[token, head, element]: queries, then keys, then values."""
        return rows.view(len(rows), -1, self._config.head_size)

    def _queries(self, heads: torch.Tensor) -> torch.Tensor:
        """[token, KV head, query of it, element]."""
        config = self._config
        shape = (len(heads), config.num_kv_heads, config.num_queries_per_kv, config.head_size)
        return heads[:, : config.num_heads].view(shape)
