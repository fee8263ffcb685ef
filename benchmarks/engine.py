"""Prefill and decode speed beside Hugging Face transformers and vLLM, interleaved in one run.

    python benchmarks/engine.py MODEL.gguf --vllm-python PATH --transformers-python PATH

Rivals live in their own virtual environments and read a folder exported from the same GGUF.
Every round gives each engine each case in turn, and the figure is the best round: what else
runs on the machine only ever takes speed away. Everyone computes in bfloat16 on all cores.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

CONTENDER = Path(__file__).with_name("engine_contender.py")
EXPORTER = Path(__file__).with_name("export_hf.py")
VOCABULARY = range(100, 40_000)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`goal` is the least ratio to vLLM's tokens a second."""

    name: str
    num_prompts: int
    prompt_length: int
    num_tokens: int
    goal: float

    def tokens_per_second(self, first: float, rest: float) -> float:
        """Prompt tokens until the first token, or output tokens after it."""
        if self.num_tokens == 1:
            return self.num_prompts * self.prompt_length / first
        return self.num_prompts * (self.num_tokens - 1) / rest


CASES = [
    Case(name="prefill 512", num_prompts=1, prompt_length=512, num_tokens=1, goal=0.9),
    Case(name="prefill 2000", num_prompts=1, prompt_length=2000, num_tokens=1, goal=0.9),
    Case(name="decode 1", num_prompts=1, prompt_length=64, num_tokens=48, goal=1.2),
    Case(name="decode 1 at 2000", num_prompts=1, prompt_length=2000, num_tokens=32, goal=1.2),
    Case(name="decode 8", num_prompts=8, prompt_length=64, num_tokens=48, goal=1.2),
]


class Contender:
    """A running engine process."""

    def __init__(self, name: str, *, python: str, model: Path) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            [python, str(CONTENDER), name, str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment(),
        )
        self._ask(None)

    def run(self, case: Case, rng: random.Random) -> float:
        """Tokens a second of one trial on fresh random prompts."""
        prompts = [rng.choices(VOCABULARY, k=case.prompt_length) for _ in range(case.num_prompts)]
        answer = self._ask({"prompts": prompts, "num_tokens": case.num_tokens})
        return case.tokens_per_second(answer["first"], answer["rest"])

    def close(self) -> None:
        """Let it finish."""
        self._process.communicate()
        self._log.close()

    def _ask(self, question: object) -> dict[str, float]:
        assert self._process.stdin
        assert self._process.stdout
        if question is not None:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            self._log.seek(0)
            raise RuntimeError(f"{self.name} ended: {self._log.read()}")
        answer: dict[str, float] = json.loads(line)
        return answer


def environment() -> dict[str, str]:
    """What vLLM's CPU build wants of its surroundings, and all cores for everyone."""
    settings = {
        "OMP_NUM_THREADS": str(os.cpu_count()),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    return {**os.environ, **settings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--vllm-python", help="python of an environment with vLLM's CPU build")
    parser.add_argument("--transformers-python", help="python of one with transformers")
    parser.add_argument("--cases", default="", help="only cases whose name starts with this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rivals = {"transformers": arguments.transformers_python, "vllm": arguments.vllm_python}
    with tempfile.TemporaryDirectory() as scratch:
        contenders = [Contender("expediter", python=sys.executable, model=arguments.model)]
        folder = exported(arguments.model, Path(scratch))
        for name, python in rivals.items():
            if python is None or not Path(python).is_file():
                print(f"{name}: skipped, --{name}-python names no interpreter ({python})")
            else:
                contenders.append(Contender(name, python=python, model=folder))
        cases = [case for case in CASES if case.name.startswith(arguments.cases)]
        found = measure(
            contenders, cases, rounds=arguments.rounds, rng=random.Random(arguments.seed)
        )
        report(found, cases)
        for contender in contenders:
            contender.close()


def exported(model: Path, folder: Path) -> Path:
    if model.is_dir():
        return model
    subprocess.run([sys.executable, str(EXPORTER), str(model), str(folder)], check=True)
    return folder


def measure(
    contenders: list[Contender], cases: list[Case], *, rounds: int, rng: random.Random
) -> dict[tuple[str, str], list[float]]:
    """Tokens a second of every trial by case and contender; a first round warms up."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for case in cases:
            for contender in contenders:
                speed = contender.run(case, rng)
                if number > 0:
                    found[case.name, contender.name].append(speed)
    return found


def report(found: dict[tuple[str, str], list[float]], cases: list[Case]) -> None:
    """A table of best rounds, each rival's with how many times its speed ours is."""
    names = list(dict.fromkeys(name for _, name in found))
    print(f"{'tokens/s':>18}" + "".join(f"{name:>22}" for name in names) + f"{'goal':>12}")
    for case in cases:
        speeds = {name: max(found[case.name, name]) for name in names}
        cells = [
            f"{speed:.0f}" + (f" (x{speeds['expediter'] / speed:.2f})" if i else "")
            for i, (name, speed) in enumerate(speeds.items())
        ]
        goal = f"x{case.goal} vllm"
        print(f"{case.name:>18}" + "".join(f"{cell:>22}" for cell in cells) + f"{goal:>12}")


if __name__ == "__main__":
    main()
