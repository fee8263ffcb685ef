"""Config to wired objects: the only package that names them all."""

from expediter.assemble.bench import run_bench
from expediter.assemble.calibrate import run_calibration
from expediter.assemble.experiment import run_experiment
from expediter.assemble.fleet import run_fleet
from expediter.assemble.gateway import run_gateway
from expediter.assemble.keys import new_key
from expediter.assemble.lab import run_lab
from expediter.assemble.planner import (
    run_goodput_plan,
    run_search_plan,
    run_size_plan,
    run_watch_plan,
    show_facts,
)
from expediter.assemble.policies import build_policy
from expediter.assemble.sweep import run_sweep
from expediter.assemble.worker import build_publisher, fetch_model, run_worker, with_model

__all__ = [
    "build_policy",
    "build_publisher",
    "fetch_model",
    "new_key",
    "run_bench",
    "run_calibration",
    "run_experiment",
    "run_fleet",
    "run_gateway",
    "run_goodput_plan",
    "run_lab",
    "run_search_plan",
    "run_size_plan",
    "run_sweep",
    "run_watch_plan",
    "run_worker",
    "show_facts",
    "with_model",
]
