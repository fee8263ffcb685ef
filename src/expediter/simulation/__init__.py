"""The same cluster on a clock that jumps.

from expediter.assemble import build_policy
from expediter.simulation import ExperimentConfig, Study

study = Study(ExperimentConfig(workload="chat", workers=4), build_policy=build_policy)
report = study.run()
"""

from expediter.results.objective import Objective
from expediter.simulation.catalog import cost_names, named_cost
from expediter.simulation.client import Network
from expediter.simulation.experiment import Run, compare, simulate
from expediter.simulation.fleet import Crash, FleetModel, Slowdown
from expediter.simulation.html import html_report
from expediter.simulation.report import Report, report
from expediter.simulation.runners import in_processes, in_turn, on_ray
from expediter.simulation.settings import ExperimentConfig
from expediter.simulation.study import Study
from expediter.simulation.sweep import CellResult, Sweep
from expediter.simulation.sweep_page import sweep_page, sweep_table
from expediter.simulation.tables import tables, to_csv, to_rows
from expediter.simulation.worker import WorkerModel

__all__ = [
    "CellResult",
    "Crash",
    "ExperimentConfig",
    "FleetModel",
    "Network",
    "Objective",
    "Report",
    "Run",
    "Slowdown",
    "Study",
    "Sweep",
    "WorkerModel",
    "compare",
    "cost_names",
    "html_report",
    "in_processes",
    "in_turn",
    "named_cost",
    "on_ray",
    "report",
    "simulate",
    "sweep_page",
    "sweep_table",
    "tables",
    "to_csv",
    "to_rows",
]
