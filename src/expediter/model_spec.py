"""The facts of a model that decide the size of its KV cache.

Every layer keeps one key and one value vector per KV head per token, so
bytes per token = 2 * layers * KV heads * head size * bytes per element.
Multi-head latent attention (DeepSeek-V2, section 2.1) keeps one latent vector instead.
"""

from dataclasses import dataclass

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """`dtype` is the KV cache's element type, a key of `DTYPE_BYTES`.

    `latent_size` is the elements a layer keeps of a token in latent attention, 0 without.
    """

    name: str
    num_layers: int
    num_kv_heads: int
    head_size: int
    dtype: str = "float16"
    max_model_len: int = 8192
    latent_size: int = 0

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV one token occupies over all layers and heads."""
        elements = self.latent_size or 2 * self.num_kv_heads * self.head_size
        return self.num_layers * elements * DTYPE_BYTES[self.dtype]

    def kv_bytes(self, num_tokens: int) -> int:
        """Bytes of KV that `num_tokens` tokens occupy."""
        return num_tokens * self.kv_bytes_per_token
