"""What a layer does between its products, compiled for one model, for steps of few rows."""

import torch

from expediter.engine.architecture import ModelConfig
from expediter.engine.kernels.compiled import Library
from expediter.engine.kernels.rows import gate, normalize, place
from expediter.engine.operations import Operations
from expediter.engine.rope import Rotation

MAX_ROWS = 32  # one thread does most of it


def operations_source(config: ModelConfig) -> str:
    """What `CompiledOperations` calls."""
    epsilon = config.hidden_size * config.rms_eps
    return "\n".join(
        [
            normalize("normalize", width=config.hidden_size, epsilon=epsilon),
            place(
                "place",
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_size=config.head_size,
            ),
            gate("gate", width=config.intermediate_size),
        ]
    )


class CompiledOperations:
    """For bfloat16 on a CPU; more than `MAX_ROWS` rows are left to `others`."""

    def __init__(self, library: Library, *, others: Operations) -> None:
        self._others = others
        self._normalize = library.function("normalize", 3, is_short=True)
        self._place = library.function("place", 6, is_short=True)
        self._gate = library.function("gate", 3)

    def normalize(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Operations`."""
        if len(rows) > MAX_ROWS:
            return self._others.normalize(rows)
        output = torch.empty_like(rows)
        self._normalize(rows.data_ptr(), output.data_ptr(), len(rows))
        return output

    def place(
        self, heads: torch.Tensor, rotation: Rotation, *, pool: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """See `Operations`."""
        if len(heads) > MAX_ROWS:
            self._others.place(heads, rotation, pool=pool, slots=slots)
            return
        cosine, sine = rotation
        self._place(
            heads.data_ptr(),
            cosine.data_ptr(),
            sine.data_ptr(),
            pool.data_ptr(),
            slots.data_ptr(),
            len(heads),
        )

    def gate(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Operations`."""
        if len(rows) > MAX_ROWS:
            return self._others.gate(rows)
        output = rows.new_empty(len(rows), rows.shape[1] // 2)
        self._gate(rows.data_ptr(), output.data_ptr(), len(rows))
        return output
