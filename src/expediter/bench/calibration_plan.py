"""What a calibration measures."""

from typing import Annotated

import msgspec

from expediter.bench.settings import EndpointConfig
from expediter.config import Positive

Lengths = Annotated[tuple[Positive, ...], msgspec.Meta(min_length=2)]
Cached = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)]


class CalibrationPlan(EndpointConfig, frozen=True, kw_only=True):
    """Every length of a prompt after every cached one, every batch at every context; in tokens.

    Shapes beyond the model's longest context are left out.
    """

    lengths: Lengths = (256, 512, 1024, 2048, 4096)
    cached: Cached = (0, 1024, 4096)
    batches: Lengths = (1, 2, 4, 8, 16, 32)
    contexts: Lengths = (256, 2048)
    output_tokens: Annotated[int, msgspec.Meta(ge=8)] = 64
    repeats: Positive = 3
