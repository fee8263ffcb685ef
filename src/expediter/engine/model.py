"""The decoder: a step's tokens in, the next token's logits out.

Every token of a step goes through every layer together; `attention.attend` alone knows that
they belong to different requests. A layer first writes its new keys and values into the
pool, then attends over the pool, so cached, chunked and fresh context are one case. Of a model
that is split over ranks this is one rank's part.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from expediter.engine.architecture import ModelConfig
from expediter.engine.attention import attend
from expediter.engine.batch import ForwardBatch
from expediter.engine.collectives import Collectives
from expediter.engine.kv_store import KVStore
from expediter.engine.rope import Rope, rotate_in_place
from expediter.engine.weights import LayerWeights, ModelWeights


class LlamaModel:
    """Weights and positions; the KV pool is the caller's. `config` says what this rank has."""

    def __init__(
        self, config: ModelConfig, *, weights: ModelWeights, rope: Rope, ranks: Collectives
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._weights = weights
        self._rope = rope
        # See `_normalize`: the epsilon under the root, for a sum in place of a mean.
        epsilon = math.sqrt(config.hidden_size * config.rms_eps)
        self._epsilon = torch.full((), epsilon).to(weights.embedding)
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
        ranks = self._ranks
        hidden = functional.embedding(batch.token_ids, self._weights.embedding)
        rotation = self._rope.tables(batch.positions, hidden.dtype)
        last = self._config.num_layers - 1
        for index, layer in enumerate(self._weights.layers):
            heads = self._heads(hidden, layer, rotation=rotation)
            store.slots[index][batch.slots] = heads[:, self._config.num_heads :]
            if on_layer is not None:
                ranks.when_all_are_here(partial(on_layer, index + 1))
            if index == last and not batch.sampling:
                break
            attended = attend(self._queries(heads), store.pieces[index], batch).flatten(1)
            if index == last:  # nobody reads the other rows
                hidden, attended = hidden[batch.sample_rows], attended[batch.sample_rows]
            hidden += ranks.sum(layer.attention_output(attended))
            gate, up = layer.gate_up(self._normalize(hidden)).chunk(2, -1)
            hidden += ranks.sum(layer.down(functional.silu(gate).mul_(up)))
        if not batch.sampling:
            ranks.meet()  # no sum came after the last layer's writing
            return hidden.new_empty(0, self.vocab_size)
        return ranks.join(self._weights.head(self._normalize(hidden)))

    def _heads(
        self,
        hidden: torch.Tensor,
        layer: LayerWeights,
        *,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """[token, head, element]: queries, then keys, both rotated, then values."""
        config = self._config
        heads = layer.qkv(self._normalize(hidden)).view(len(hidden), -1, config.head_size)
        rotate_in_place(heads[:, : config.num_heads + config.num_kv_heads], *rotation)
        return heads

    def _queries(self, heads: torch.Tensor) -> torch.Tensor:
        """[token, KV head, query of it, element]."""
        config = self._config
        shape = (len(heads), config.num_kv_heads, config.num_queries_per_kv, config.head_size)
        return heads[:, : config.num_heads].view(shape)

    def _normalize(self, hidden: torch.Tensor) -> torch.Tensor:
        """x / sqrt(sum(x^2) + n eps): RMSNorm less its gain and sqrt(n), which weights hold."""
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        return hidden / torch.hypot(length, self._epsilon)
