"""Configuration: defaults, file, environment, --set; and errors a person can act on."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.config import Config, cache_dir, child_environment
from expediter.errors import ConfigError
from expediter.settings import check, load_config, to_toml


def load(text: str = "", *, tmp_path: Path, env: dict[str, str] | None = None, sets=()) -> Config:
    path = tmp_path / "expediter.toml"
    path.write_text(text)
    return load_config(path, environ=env or {}, overrides=sets)


def test_without_any_source_the_defaults_hold() -> None:
    assert load_config(None, environ={}) == Config()


def test_each_later_source_wins_over_the_one_before(tmp_path: Path) -> None:
    file = "[worker.scheduler]\nmax-running = 1\n"
    env = {"EXPEDITER_WORKER__SCHEDULER__MAX_RUNNING": "2"}
    sets = ["worker.scheduler.max-running=3"]
    assert load(file, tmp_path=tmp_path).worker.scheduler.max_running == 1
    assert load(file, tmp_path=tmp_path, env=env).worker.scheduler.max_running == 2
    assert load(file, tmp_path=tmp_path, env=env, sets=sets).worker.scheduler.max_running == 3


def test_the_last_of_two_overrides_of_one_key_wins() -> None:
    config = load_config(None, environ={}, overrides=["gateway.port=1", "gateway.port=2"])
    assert config.gateway.port == 2


def test_variables_without_a_double_underscore_are_not_settings() -> None:
    environ = {"EXPEDITER_CACHE": "/elsewhere", "EXPEDITER_TRACES": "/traces", "PATH": "/bin"}
    assert load_config(None, environ=environ) == Config()


def test_a_list_of_tables_can_be_given_in_the_file_and_on_the_command_line(tmp_path: Path) -> None:
    file = '[[gateway.workers]]\nurl = "http://a:1"\nworker-id = "a"\n'
    (worker,) = load(file, tmp_path=tmp_path).gateway.workers
    assert (worker.url, worker.worker_id) == ("http://a:1", "a")
    sets = ['gateway.workers=[{url = "http://b:2"}]']
    (worker,) = load(file, tmp_path=tmp_path, sets=sets).gateway.workers
    assert (worker.url, worker.worker_id) == ("http://b:2", None)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("worker.kv-cash.block-size=16", "worker.kv-cash: unknown key; did you mean kv-cache?"),
        (
            "worker.kv-cache.block_size=16",
            "worker.kv-cache.block_size: unknown key; did you mean block-size?",
        ),
        ("zebra=1", "zebra: unknown key; there are fleet, gateway, worker"),
        (
            'gateway.workers=[{url = "u", urk = 1}]',
            "gateway.workers[0].urk: unknown key; did you mean url?",
        ),
        (
            "worker.scheduler.policy=random",
            "worker.scheduler.policy: Invalid enum value 'random'; allowed are fcfs, "
            "longest-prefix, prefix-quotas, priority",
        ),
        ("worker.kv-cache.block-size=0", "worker.kv-cache.block-size: Expected `int` >= 1"),
        (
            "worker.kv-cache.block-size=a",
            "worker.kv-cache.block-size: Expected `int`, got `str`",
        ),
        (
            "worker.kv-cache.prefix-caching=1",
            "worker.kv-cache.prefix-caching: Expected `bool`, got `int`",
        ),
        ("gateway.port=65536", "gateway.port: Expected `int` <= 65535"),
        (
            "gateway.workers=[{}]",
            "gateway.workers[0]: Object missing required field `url`",
        ),
        ("worker=3", "worker: Expected `object`, got `int`"),
        ("gateway.port", "--set gateway.port: write it as section.key=value"),
        ("=1", "--set =1: write it as section.key=value"),
    ],
)
def test_a_wrong_override_is_an_error_that_says_where_and_what_is_allowed(
    override: str, message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(None, environ={}, overrides=[override])
    assert str(raised.value) == message


def test_an_error_in_the_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expediter\.toml: gateway\.prot: unknown key"):
        load("[gateway]\nprot = 1", tmp_path=tmp_path)


def test_a_file_that_is_missing_or_not_toml_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.toml", environ={})
    with pytest.raises(ConfigError, match="not TOML"):
        load("[gateway", tmp_path=tmp_path)


def test_a_key_below_a_value_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"gateway\.port: has a value"):
        load_config(None, environ={}, overrides=["gateway.port=1", "gateway.port.x=2"])


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30))
def test_any_text_is_either_accepted_or_a_config_error(text: str) -> None:
    with suppress(ConfigError):
        config = load_config(None, environ={}, overrides=[f"worker.worker-id={text}"])
        assert isinstance(config.worker.worker_id, str)


def test_a_config_written_as_toml_reads_back_the_same(tmp_path: Path) -> None:
    sets = [
        "gateway.workers=[{url = 'u'}]",
        "worker.engine.model='a \"b\" \\ c'",
        "fleet.num-workers=7",
    ]
    config = load_config(None, environ={}, overrides=sets)
    assert load(to_toml(config), tmp_path=tmp_path) == config
    assert check({}) == Config()


def test_a_child_inherits_no_settings_and_keeps_what_the_user_set() -> None:
    environ = {"EXPEDITER_GATEWAY__PORT": "1", "OMP_NUM_THREADS": "1", "HOME": "/root"}
    child = child_environment(environ, OMP_NUM_THREADS="4", OMP_WAIT_POLICY="PASSIVE")
    assert child == {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HOME": "/root"}


def test_the_cache_is_where_the_user_says_else_where_the_desktop_standard_says() -> None:
    home = Path(os.path.expanduser("~"))  # noqa: PTH111
    assert cache_dir({}) == home / ".cache/expediter"
    assert cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/expediter")
    assert cache_dir({"XDG_CACHE_HOME": "/x", "EXPEDITER_CACHE": "/y"}) == Path("/y")


def test_the_page_on_configuration_has_every_key() -> None:
    page = Path(__file__).parents[1].joinpath("docs/configuration.md").read_text("utf-8")
    missing = [key for key in _keys(Config) if f"`{key}`" not in page]
    assert missing == []


def _keys(section: type) -> Iterator[str]:
    for field in msgspec.inspect.type_info(section).fields:  # type: ignore[attr-defined]
        nested = getattr(field.type, "item_type", field.type)
        if isinstance(nested, msgspec.inspect.StructType):
            yield from _keys(nested.cls)
        else:
            yield field.encode_name
