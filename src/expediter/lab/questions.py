"""What the page may ask, with the range of every value.

Questions come as query strings, so each state of the page is an address. What is left out has
its default; what is out of range, unknown or no number is an error that names it.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from expediter.config import Section
from expediter.errors import RequestError
from expediter.lab.burst import Arm, Burst, Queue
from expediter.lab.caches import Form
from expediter.lab.demo import FAST_POLICIES
from expediter.lab.disaggregation import Case
from expediter.lab.policies import REAL_POLICIES
from expediter.lab.traffic import Setting
from expediter.model_spec import DTYPE_BYTES
from expediter.planner.links import LINKS
from expediter.simulation.models import model_names
from expediter.simulation.roofline import GPUS

Q = TypeVar("Q", bound="Question")
Seed = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class Question(Section, frozen=True, kw_only=True):
    """What all questions share: keys in kebab case, strict."""


class RoutingQuestion(Question, frozen=True, kw_only=True):
    """The routing demo; `policy` is the one that is highlighted, `form` what its texts share."""

    policy: str = "cache-aware"
    form: Form = "published"
    replicas: Annotated[int, msgspec.Meta(ge=1, le=32)] = 8
    cache: Annotated[int, msgspec.Meta(ge=10_000, le=1_000_000)] = 400_000  # tokens a replica
    conversations: Annotated[int, msgspec.Meta(ge=10, le=3000)] = 500
    skew: Annotated[float, msgspec.Meta(ge=0, le=2)] = 1.0
    systems: Annotated[int, msgspec.Meta(ge=1, le=32)] = 4
    rate: Annotated[float, msgspec.Meta(ge=1, le=60)] = 10.0  # requests a second
    seed: Seed = 5

    def __post_init__(self) -> None:
        """Policies have names."""
        _one_of("policy", self.policy, (*FAST_POLICIES, *REAL_POLICIES))

    @property
    def setting(self) -> Setting:
        """What of it decides the numbers."""
        return Setting(
            num_replicas=self.replicas,
            capacity=self.cache,
            num_conversations=self.conversations,
            skew=self.skew,
            num_systems=self.systems,
            rate=self.rate,
            seed=self.seed,
        )


class TransferQuestion(Question, frozen=True, kw_only=True):
    """The disaggregation panel. `cards` says whether each GPU sends over its own link."""

    model: str = "llama3-70b"
    dtype: str = "float16"
    tp: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    link: str = "nic400"
    cards: str = "each"
    cost: str = "linear"
    gpu: str = "h100"
    prompt: Annotated[int, msgspec.Meta(ge=100, le=1_000_000)] = 8000
    mean: Annotated[int, msgspec.Meta(ge=100, le=1_000_000)] = 3000  # prompt tokens of the traffic
    output: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 300
    rate: Annotated[float, msgspec.Meta(ge=0.1, le=1000)] = 20.0
    tpot: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 40.0  # milliseconds
    hits: Annotated[float, msgspec.Meta(ge=0, le=99)] = 83.0  # per cent

    def __post_init__(self) -> None:
        """Names must be known."""
        _one_of("model", self.model, model_names())
        _one_of("dtype", self.dtype, list(DTYPE_BYTES))
        _one_of("link", self.link, list(LINKS))
        _one_of("cards", self.cards, ("each", "one"))
        _one_of("cost", self.cost, ("linear", "roofline"))
        _one_of("gpu", self.gpu, list(GPUS))

    @property
    def case(self) -> Case:
        """In the planner's units."""
        return Case(
            model=self.model,
            dtype=self.dtype,
            tp=self.tp,
            link=self.link,
            one_card=self.cards == "one",
            cost=self.cost,
            gpu=self.gpu,
            prompt=self.prompt,
            mean=self.mean,
            output=self.output,
            rate=self.rate,
            tpot=self.tpot / 1e3,
            hit_rate=self.hits / 100,
        )


class BurstQuestion(Question, frozen=True, kw_only=True):
    """The burst; bounded, so that a simulation takes seconds at the most."""

    policy: Arm = "longest-match"
    queue: Queue = "fcfs"
    rate: Annotated[float, msgspec.Meta(ge=20, le=200)] = 125.0  # requests a second
    seconds: Annotated[float, msgspec.Meta(ge=4, le=30)] = 12.0
    seed: Seed = 1

    @property
    def burst(self) -> Burst:
        """The run."""
        return Burst(
            policy=self.policy,
            queue=self.queue,
            rate=self.rate,
            seconds=self.seconds,
            seed=self.seed,
        )


def parse(kind: type[Q], query: Mapping[str, str]) -> Q:
    """A question from a query string; raises RequestError that says what is allowed."""
    try:
        return msgspec.convert(dict(query), kind, strict=False)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        param = path.removeprefix(".").removesuffix("`") or None
        raise RequestError(f"{param}: {message}" if param else message, param=param) from None


def choices() -> dict[str, Any]:
    """Names and defaults for the page's controls."""
    kinds: dict[str, type[Question]] = {
        "routing": RoutingQuestion,
        "transfer": TransferQuestion,
        "burst": BurstQuestion,
    }
    return {
        "fast": FAST_POLICIES,
        "real": REAL_POLICIES,
        "models": model_names(),
        "dtypes": list(DTYPE_BYTES),
        "gpus": list(GPUS),
        "links": [{"name": link.name, "source": link.source} for link in LINKS.values()],
        "controls": {name: _controls(kind) for name, kind in kinds.items()},
    }


def _controls(kind: type[Question]) -> dict[str, dict[str, Any]]:
    """Each value's default, and its range where it has one."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    controls = {}
    for field in info.fields:
        controls[field.encode_name] = {"default": field.default}
        if isinstance(field.type, msgspec.inspect.IntType | msgspec.inspect.FloatType):
            controls[field.encode_name] |= {"min": field.type.ge, "max": field.type.le}
    return controls


def _one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{key}: {value!r} is not one of {', '.join(allowed)}")
