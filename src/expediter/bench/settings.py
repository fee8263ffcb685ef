"""A benchmark as settings: what a TOML file or a command line says of it."""

from typing import Annotated, Any, Literal

import msgspec

from expediter.config import NotNegative, Positive, Seconds, Section
from expediter.results.objective import ClassObjective, Objective, objectives
from expediter.workload.catalog import TraceFormat

DEFAULT_RATE = 1.0
DEFAULT_REQUESTS = 100


class EndpointConfig(Section, frozen=True, kw_only=True):
    """An OpenAI endpoint. Without `model` it is the first that the endpoint lists."""

    url: Annotated[str, msgspec.Meta(pattern=r"^https?://[^/ ]+")]
    model: str | None = None
    api_key: str | None = None
    timeout: Seconds = 600.0  # of a whole answer
    headers: dict[str, str] = msgspec.field(default_factory=dict)


class BenchConfig(EndpointConfig, frozen=True, kw_only=True):
    """One workload, generated (`workload`) or recorded (`trace`), sent when it is due.

    `scale` shortens every text by a factor, for models with a small context. `max_concurrency`
    holds requests back, and how long shows in the send lag. `answers` are what a conversation's
    next prompt holds: the endpoint's own or made-up ones. `words_per_token` is measured with two
    short requests if not given. `ttft`, `tpot` and `e2e` are the service level in seconds of
    every class that has none in `slo`. `json`, `csv`, `parquet` and `html` are files to write.
    """

    api: Literal["chat", "completions"] = "chat"
    workload: str | None = None
    trace: str | None = None
    format: TraceFormat | None = None
    rate: Seconds | None = None  # requests a second
    requests: Positive | None = None
    seed: int = 0
    scale: Seconds = 1.0
    max_concurrency: Positive | None = None
    answers: Literal["own", "made-up"] = "own"
    ignore_eos: bool = True
    temperature: NotNegative = 0.0
    extra_body: dict[str, Any] = msgspec.field(default_factory=dict)
    session_header: str | None = None
    words_per_token: Seconds | None = None
    warmup: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0  # of the requests, not counted
    ttft: NotNegative | None = None
    tpot: NotNegative | None = None
    e2e: NotNegative | None = None
    slo: tuple[ClassObjective, ...] = ()
    json: str | None = None
    csv: str | None = None
    parquet: str | None = None
    html: str | None = None

    def __post_init__(self) -> None:
        """Settings that contradict each other are errors."""
        if self.workload is not None and self.trace is not None:
            raise ValueError("workload and trace: there can be only one of them")
        if (self.trace is None) != (self.format is None):
            raise ValueError("trace and format: one needs the other")

    @property
    def objectives(self) -> dict[str, Objective]:
        """Service levels by class."""
        default = Objective(ttft=self.ttft, tpot=self.tpot, e2e=self.e2e)
        return objectives(self.slo, default=default)
