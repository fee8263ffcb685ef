"""Runs the experiments and renews docs/results.md.

    python -m experiments                  all of them
    python -m experiments demo_table       some
    python -m experiments --quick          small forms, which are printed and not kept

Those that replay a recorded trace look for it under EXPEDITER_TRACES and leave it out without.
"""

import argparse
import importlib
import logging
import time

from experiments.running import keep, show

NAMES = (
    "worked_numbers",
    "demo_table",
    "hot_prefix",
    "four_policies",
    "mooncake",
    "distserve",
    "two_pools",
    "preble",
    "winners",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Reproduces published results in simulation.")
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="which; all by default")
    parser.add_argument("--quick", action="store_true", help="small forms, not kept")
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)  # what simulated fleets go through is no news
    for name in args.names or NAMES:
        print(f"\n# {name}", flush=True)
        start = time.perf_counter()
        tables = importlib.import_module(f"experiments.{name}").run(quick=args.quick)
        show(tables)
        print(f"\n{name}: {time.perf_counter() - start:.0f} s", flush=True)
        if tables and not args.quick:
            keep(name, tables)


if __name__ == "__main__":
    main()
