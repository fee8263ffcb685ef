"""Cost models by name, as a command line or a configuration names them."""

from collections.abc import Mapping
from pathlib import Path

from expediter.errors import ConfigError
from expediter.simulation.costs import CostModel, LinearCost
from expediter.simulation.grid import grid_names, packaged_grid
from expediter.simulation.measured import load_cost
from expediter.simulation.models import model_names, named_model
from expediter.simulation.published import DISTSERVE, FITS, PREBLE_LLAMA, PrebleMistral
from expediter.simulation.roofline import GPUS, Roofline

ROOFLINE = "roofline:"
"""What follows: a model (a name, or a folder with a `config.json`), then GPUs, as in
"roofline:llama3-8b:2xl40s"."""

DEFAULT_COST = "llama3-70b_h100_sxm_sglang_tp8"


def cost_names() -> list[str]:
    """Every name that `named_cost` knows: the grids first."""
    return [*grid_names(), *_others()]


def named_cost(name: str) -> CostModel:
    """The cost model with this name, in this file, or of this roofline.

    `ConfigError` says which there are.
    """
    if name.endswith((".json", ".csv")):
        return load_cost(Path(name))
    if name.startswith(ROOFLINE):
        return _roofline(name)
    if name in grid_names():
        return packaged_grid(name)
    others = _others()
    if name not in others:
        raise ConfigError(f"no cost model is called {name!r}; there are {', '.join(cost_names())}")
    return others[name]


def _roofline(name: str) -> Roofline:
    model, _, gpus = name.removeprefix(ROOFLINE).rpartition(":")
    number, _, gpu = gpus.rpartition("x") if gpus not in GPUS else ("1", "", gpus)
    if not model or gpu not in GPUS or not number.isdecimal() or int(number) < 1:
        raise ConfigError(
            f"{name!r}: a roofline is {ROOFLINE}MODEL:NxGPU, where MODEL is "
            f"{', '.join(model_names())} or a folder with a config.json, and GPU {', '.join(GPUS)}"
        )
    return Roofline(model=named_model(model), gpu=GPUS[gpu], num_gpus=int(number))


def _others() -> Mapping[str, CostModel]:
    fits = {f"{name}-fit": cost for name, cost in FITS.items()}
    mistral = {"mistral-7b-1xa6000-preble": PrebleMistral()}
    return {"linear": LinearCost(), **fits, **DISTSERVE, **PREBLE_LLAMA, **mistral}
