"""Cost models by name, as a command line or a configuration names them."""

from collections.abc import Mapping
from pathlib import Path

from expediter.errors import ConfigError
from expediter.simulation.costs import CostModel, LinearCost
from expediter.simulation.grid import grid_names, packaged_grid
from expediter.simulation.measured import load_cost
from expediter.simulation.published import DISTSERVE, FITS, PREBLE_LLAMA, PrebleMistral

DEFAULT_COST = "llama3-70b_h100_sxm_sglang_tp8"


def cost_names() -> list[str]:
    """Every name that `named_cost` knows: the grids first."""
    return [*grid_names(), *_others()]


def named_cost(name: str) -> CostModel:
    """The cost model with this name, or in this file; `ConfigError` says which there are."""
    if name.endswith((".json", ".csv")):
        return load_cost(Path(name))
    if name in grid_names():
        return packaged_grid(name)
    others = _others()
    if name not in others:
        raise ConfigError(f"no cost model is called {name!r}; there are {', '.join(cost_names())}")
    return others[name]


def _others() -> Mapping[str, CostModel]:
    fits = {f"{name}-fit": cost for name, cost in FITS.items()}
    mistral = {"mistral-7b-1xa6000-preble": PrebleMistral()}
    return {"linear": LinearCost(), **fits, **DISTSERVE, **PREBLE_LLAMA, **mistral}
