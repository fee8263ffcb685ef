"""From a TOML file, the environment and `--set` to one `Config`; the later source wins.

All three say the same thing, a value at a path: `[worker.engine] dtype = "float32"`,
`EXPEDITER_WORKER__ENGINE__DTYPE=float32`, `--set worker.engine.dtype=float32`. So they are
merged as one tree of plain values, and only that tree is checked. A variable without `__` is
not a setting.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli_w
from msgspec import inspect

from expediter.config import ENV_PREFIX, Config, Section
from expediter.errors import ConfigError

Kind = TypeVar("Kind", bound=Section)

_PROBLEM = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<where>.*)`)?", re.DOTALL)


def load_config(
    path: Path | None,
    *,
    environ: Mapping[str, str],
    overrides: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Defaults, then `path`, `environ`, `overrides` (`section.key=value`), `flags` (plain values).

    Raises ConfigError that names the key and says what it may be.
    """
    tree = read_toml(path) if path is not None else {}
    for keys, text in [*_from_environment(environ), *map(_from_override, overrides)]:
        _put(tree, keys, parse_value(text))
    for name, value in (flags or {}).items():
        _put(tree, name.split("."), value)
    return check(tree, source=str(path) if path is not None else "")


def load_section(kind: type[Kind], path: Path | None, *, flags: Mapping[str, Any]) -> Kind:
    """Defaults, then `path`, then `flags` (by their paths), and nothing of this machine.

    Errors as `load_config`.
    """
    tree = read_toml(path) if path is not None else {}
    for name, value in flags.items():
        _put(tree, name.split("."), value)
    return section_from(kind, tree, source=str(path) if path is not None else "")


def as_settings(overrides: Iterable[str]) -> dict[str, Any]:
    """Each `key=value` as a file would have it; raises ConfigError for what is none."""
    tree: dict[str, Any] = {}
    for keys, text in map(_from_override, overrides):
        _put(tree, keys, parse_value(text))
    return tree


def check(tree: Mapping[str, Any], *, source: str = "") -> Config:
    """The tree as a `Config`; raises ConfigError for a key or value that is not allowed."""
    return section_from(Config, tree, source=source)


def section_from(kind: type[Kind], tree: Mapping[str, Any], *, source: str) -> Kind:
    """A tree as a section; errors begin with `source`."""
    where = f"{source}: " if source else ""
    root = inspect.type_info(kind)
    for problem in _unknown_keys(root, tree, ""):
        raise ConfigError(where + problem)
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(where + _explain(root, str(error))) from None


def to_toml(config: Config) -> str:
    """The file that gives this `config`; values that are not set are left out."""
    tree = msgspec.to_builtins(config)
    return tomli_w.dumps(_without_nulls(tree))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """A file's tree of plain values; ConfigError if there is none."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[list[str], str]]:
    for name, text in sorted(environ.items()):
        if name.startswith(ENV_PREFIX) and "__" in name:
            keys = name.removeprefix(ENV_PREFIX).lower().split("__")
            yield [key.replace("_", "-") for key in keys], text


def _from_override(override: str) -> tuple[list[str], str]:
    name, equals, text = override.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set {override}: write it as section.key=value")
    return name.strip().split("."), text


def parse_value(text: str) -> Any:
    """What TOML makes of it; a bare word is a string."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _put(tree: dict[str, Any], keys: list[str], value: Any) -> None:
    *sections, last = keys
    for depth, key in enumerate(sections, 1):
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{'.'.join(keys[:depth])}: has a value, so it has no keys")
    tree[last] = value


def _unknown_keys(kind: inspect.Type, value: Any, path: str) -> Iterator[str]:
    """One message for each key that `kind` does not have."""
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        fields = {field.encode_name: field.type for field in kind.fields}
        for key, item in value.items():
            if key in fields:
                yield from _unknown_keys(fields[key], item, f"{path}{key}.")
            else:
                yield f"{path}{key}: unknown key; {_suggest(key, fields)}"
    elif isinstance(kind, inspect.VarTupleType) and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _unknown_keys(kind.item_type, item, f"{path.removesuffix('.')}[{number}].")


def _suggest(key: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(key.replace("_", "-"), names, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"


def _explain(root: inspect.Type, problem: str) -> str:
    """msgspec's message with the path first, and the choices where there are some."""
    found = _PROBLEM.fullmatch(problem)
    what, where = (found["what"], found["where"]) if found else (problem, None)
    choices = _choices(_type_at(root, where or ""))
    if choices:
        what += f"; allowed are {', '.join(choices)}"
    return f"{where}: {what}" if where else what


def _type_at(kind: inspect.Type, where: str) -> inspect.Type | None:
    for key in filter(None, where.split(".")):
        name = key.partition("[")[0]
        fields = kind.fields if isinstance(kind, inspect.StructType) else ()
        found = next((field.type for field in fields if field.encode_name == name), None)
        if found is None:
            return None
        kind = found.item_type if isinstance(found, inspect.VarTupleType) and "[" in key else found
    return kind


def _choices(kind: inspect.Type | None) -> list[str]:
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return [str(v) for each in kinds if isinstance(each, inspect.LiteralType) for v in each.values]
