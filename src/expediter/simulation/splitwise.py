"""Step times that Splitwise measured (ISCA'24): Llama-2-70B and BLOOM-176B on A100 and H100.

From `perf_model.csv` of Mutinifni/splitwise-sim, whose simulator does the same: a prompt takes
what its pass's tokens take together, a decode what its batch takes, both interpolated between
medians, and a pass with both takes 1.1 times its prompt's time. Its 2023 engine is two to three
times slower than today's, so use it for nothing but Splitwise. Context costs nothing in it.
"""

import csv
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from expediter.errors import ConfigError
from expediter.scheduling.output import StepWork
from expediter.simulation.costs import MS
from expediter.simulation.grid import Line

MIXED = 1.1
DECODE_PROMPT = 512  # tokens of context at which batches of decodes were measured


class SplitwiseCost:
    """See the module."""

    def __init__(
        self, prefill: Iterable[tuple[float, float]], decode: Iterable[tuple[float, float]]
    ) -> None:
        """Points of tokens and ms, and of requests and ms."""
        self._prefill, self._decode = Line(sorted(prefill)), Line(sorted(decode))

    def seconds(self, work: StepWork) -> float:
        """See `CostModel`."""
        if not work.chunks:
            return self._decode.at(work.num_decodes) * MS if work.num_decodes else 0.0
        prefill = self._prefill.at(work.num_prompt_tokens) * MS
        return MIXED * prefill if work.num_decodes else prefill


def load_splitwise(path: Path, *, model: str, hardware: str, tensor_parallel: int) -> SplitwiseCost:
    """One setting of the file, such as "llama2-70b" on "h100-80gb" at 8."""
    prefill: dict[float, list[float]] = {}
    decode: dict[float, list[float]] = {}
    wanted = (model, hardware, str(tensor_parallel))
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if (row["model"], row["hardware"], row["tensor_parallel"]) != wanted:
                    continue
                prompt, batch = int(row["prompt_size"]), int(row["batch_size"])
                prefill.setdefault(prompt * batch, []).append(float(row["prompt_time"]))
                if prompt == DECODE_PROMPT:
                    decode.setdefault(batch, []).append(float(row["token_time"]))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{path} is not Splitwise's performance model: {error}") from None
    if len(prefill) < 2 or len(decode) < 2:
        raise ConfigError(f"{path} has nothing of {model} on {hardware} at TP {tensor_parallel}")
    medians = [[(x, median(ms)) for x, ms in found.items()] for found in (prefill, decode)]
    return SplitwiseCost(*medians)
