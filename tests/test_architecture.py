"""The rules that keep the code readable, checked on the source itself."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "expediter"
MODULES = sorted(SOURCE.rglob("*.py"))
CODE = [
    *MODULES,
    *(
        path
        for top in ("tests", "benchmarks", "experiments", "examples")
        for path in (ROOT / top).rglob("*.py")
    ),
]

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40
MAX_PARAMETERS = 6

# Modules at the top level that hold words everybody uses. They import only each other.
SHARED = {"clock", "config", "errors", "load", "model_spec", "request"}

# Dependencies point one way: what each part may import besides itself and SHARED.
ARROWS: dict[str, set[str]] = {
    "kvcache": set(),
    "tokenizer": set(),
    "scheduling": {"kvcache"},
    "routing": {"kvcache"},
    "engine": {"scheduling", "transfer", "kvcache", "tokenizer"},
    "worker": {"scheduling", "transfer", "kvcache", "tokenizer"},
    "transfer": {"kvcache"},
    "cluster": {"routing", "kvcache"},
    "gateway": {"cluster", "routing", "kvcache", "tokenizer"},
    "simulation": {
        "cluster",
        "routing",
        "worker",
        "scheduling",
        "transfer",
        "kvcache",
        "workload",
        "results",
    },
    "workload": set(),
    "results": set(),
    "bench": {"workload", "results"},
    "planner": {"simulation", "scheduling", "routing", "workload", "results"},
    "pages": set(),
    "lab": {"pages", "planner", "simulation", "scheduling", "routing", "workload"},
    "dashboard": {"pages", "gateway", "cluster"},
    "settings": set(),
    "fleet": {"settings"},
    "cli": {"assemble", "settings", "fleet"},
    "__main__": {"cli"},
}
ANYTHING = {"assemble"}
PURE = ("kvcache", "scheduling", "routing")
IMPURE_MODULES = {"torch", "asyncio", "time", "datetime", "os", "socket", "threading", "subprocess"}
TORCH_ONLY_IN = {"engine"}


def part(path: Path) -> str:
    """The package under expediter, or the module at its top level."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), filename=str(path))


def imports(path: Path) -> Iterator[str]:
    """Full names of the imported modules, inside functions too."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def where(path: Path, line: int | None = None) -> str:
    name = str(path.relative_to(ROOT))
    return name if line is None else f"{name}:{line}"


def names_attribute(path: Path, module: str, names: set[str]) -> Iterator[int]:
    """The lines that use `module.name`, or import the name from the module."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == module and node.attr in names:
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == module:
            yield from (node.lineno for alias in node.names if alias.name in names)


def test_imports_follow_the_arrows() -> None:
    wrong = []
    for path in MODULES:
        own = part(path)
        allowed = SHARED | ARROWS.get(own, set()) | {own}
        for name in imports(path):
            first, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if first == "expediter" and own not in ANYTHING and target not in allowed:
                wrong.append(f"{where(path)} imports {name}")
    assert not wrong


def test_every_part_has_its_place_in_the_arrows() -> None:
    parts = {part(path) for path in MODULES} - {"__init__"}
    assert parts <= set(ARROWS) | SHARED | ANYTHING


def test_the_arrows_have_no_cycle() -> None:
    def reaches(start: str, goal: str) -> bool:
        return any(step == goal or reaches(step, goal) for step in ARROWS.get(start, set()))

    assert not [name for name in ARROWS if reaches(name, name)]


def test_the_core_is_pure() -> None:
    """No torch, no event loop, no clock, no I/O: time and chance come in as arguments."""
    wrong = [
        f"{where(path)} imports {name}"
        for path in MODULES
        if part(path) in PURE
        for name in imports(path)
        if name.partition(".")[0] in IMPURE_MODULES
    ]
    wrong += [
        f"{where(path, line)} uses the shared random generator"
        for path in MODULES
        if part(path) in PURE
        for line in names_attribute(path, "random", {"random", "choice", "shuffle", "randint"})
    ]
    assert not wrong


def test_torch_lives_in_the_engine() -> None:
    wrong = [
        f"{where(path)} imports {name}"
        for path in MODULES
        if part(path) not in TORCH_ONLY_IN
        for name in imports(path)
        if name.partition(".")[0] == "torch"
    ]
    assert not wrong


def test_only_config_reads_the_environment() -> None:
    wrong = [
        where(path, line)
        for path in MODULES
        if part(path) != "config"
        for line in names_attribute(path, "os", {"environ", "getenv", "environb"})
    ]
    assert not wrong


def test_nothing_prints() -> None:
    wrong = [
        where(path, node.lineno)
        for path in MODULES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"print", "breakpoint"}
    ]
    assert not wrong


def test_files_are_short() -> None:
    lengths = {where(path): len(path.read_text("utf-8").splitlines()) for path in CODE}
    assert {name: n for name, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    lengths = {
        f"{where(path, function.lineno)} {function.name}": _length(function)
        for path in CODE
        for function in functions(path)
    }
    assert {name: n for name, n in lengths.items() if n > MAX_FUNCTION_LINES} == {}


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_functions_take_few_parameters(path: Path) -> None:
    """At most six besides `self`; a typer command's parameters are the command line's."""
    wrong = []
    for function in functions(path):
        if any(_is_command(decorator) for decorator in function.decorator_list):
            continue
        arguments = function.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        count = len([argument for argument in named if argument.arg not in {"self", "cls"}])
        if count > MAX_PARAMETERS:
            wrong.append(f"{where(path, function.lineno)} {function.name}: {count} parameters")
    assert not wrong


def _is_command(decorator: ast.expr) -> bool:
    call = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(call, ast.Attribute) and call.attr in {"command", "callback"}


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_every_module_opens_with_what_it_is(path: Path) -> None:
    docstring = ast.get_docstring(parse(path))
    assert docstring or not path.read_text("utf-8").strip(), where(path)


def test_importing_a_module_does_nothing() -> None:
    """Module level holds definitions and constants; a bare call there would be work."""
    wrong = [
        where(path, node.lineno)
        for path in MODULES
        if part(path) not in {"cli", "__main__"}
        for node in parse(path).body
        if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        or isinstance(node, ast.For | ast.While | ast.With)
    ]
    assert not wrong


def test_no_file_names_the_machine_it_was_written_on() -> None:
    words = ("/work" + "/", "scratch" + "/", "pypi" + ".org", "registry.npm" + "js", "/root" + "/")
    pattern = re.compile("|".join(map(re.escape, words)))
    suffixes = {".py", ".md", ".toml", ".txt", ".svg", ".yml", ".yaml", ""}
    wrong = [
        f"{where(path)}: {found.group()}"
        for path in _project_files()
        if path.suffix in suffixes
        for found in pattern.finditer(path.read_text("utf-8", "replace"))
    ]
    assert not wrong


def _project_files() -> Iterator[Path]:
    for name in (
        "src",
        "tests",
        "docs",
        "examples",
        "benchmarks",
        "experiments",
        "requirements",
        ".ci",
    ):
        yield from (p for p in (ROOT / name).rglob("*") if p.is_file() and "cache" not in str(p))
    yield from (path for path in ROOT.iterdir() if path.is_file())
