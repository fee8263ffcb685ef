"""Keys in a file of their own: read, read again when it changes, and made by the command."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_worker import JSON_OK, FakeWorker, always, ask, post, until
from operated import operated

from expediter.config import TenancyConfig, TenantConfig
from expediter.errors import ConfigError
from expediter.gateway.key_file import KeyFile, key_line
from expediter.gateway.tenants import hash_key, make_key

HASH = hash_key("k")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def tenancy(path: Path) -> TenancyConfig:
    tenants = tuple(
        TenantConfig(tenant_id=name, cache_salt=f"0123456789abcdef{name[0]}")
        for name in ("search team", "other")
    )
    return TenancyConfig(tenants=tenants, key_file=str(path))


def write(path: Path, *lines: str) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def test_lines_are_tenants_and_hashes_and_the_rest_is_comment(path: Path) -> None:
    write(path, "# keys", "", f"search team   {HASH}  # of May", f"other\t{hash_key('x')}")
    assert KeyFile(path).read() == [("search team", HASH), ("other", hash_key("x"))]


@pytest.mark.parametrize("line", ["search", f"{HASH}", "a sha256:12", f"a {HASH}0", "a plain-key"])
def test_another_line_is_an_error_that_names_it_and_not_what_it_says(line: str, path: Path) -> None:
    write(path, "# keys", line)
    with pytest.raises(ConfigError, match=r"keys:2: write it as TENANT-ID sha256:HASH") as caught:
        KeyFile(path).read()
    assert "plain-key" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error(path: Path) -> None:
    with pytest.raises(ConfigError, match="keys: No such file"):
        KeyFile(path).read()
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        KeyFile(path).read()


def test_a_change_is_told_once_and_a_file_that_is_gone_is_none(path: Path) -> None:
    write(path, f"a {HASH}")
    keys = KeyFile(path)
    keys.read()
    assert not keys.has_changed()
    write(path, f"a {HASH}", f"b {HASH}")
    os.utime(path, ns=(1, 1))
    assert keys.has_changed()
    assert not keys.has_changed()
    path.unlink()
    assert not keys.has_changed()


@pytest.mark.parametrize("tenant", ["", " ", "a#b", "a  b", " a", "a\nb"])
def test_tenants_that_the_file_could_not_say_are_refused(tenant: str) -> None:
    with pytest.raises(ConfigError, match="no # and no odd spaces"):
        key_line(tenant, HASH)


def test_the_command_makes_a_key_and_the_line_for_the_file(path: Path) -> None:
    command = [sys.executable, "-m", "expediter", "keys", "new"]
    done = subprocess.run([*command, "search team"], capture_output=True, text=True, check=True)
    key, line = done.stdout.splitlines()
    write(path, line)
    assert KeyFile(path).read() == [("search team", hash_key(key))]
    assert len(key) > 40
    assert key not in line
    bad = subprocess.run([*command, "a#b"], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")


async def test_a_key_that_is_added_is_valid_and_one_taken_out_is_not(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("expediter.gateway.admission.FILES_SECONDS", 0.01)
    (one, one_hash), (two, two_hash) = make_key(), make_key()
    write(path, key_line("search team", one_hash))
    async with (
        FakeWorker(always(JSON_OK)) as worker,
        operated(worker, tenancy=tenancy(path)) as (gateway, _),
    ):

        async def status(key: str) -> int:
            headers = f"Authorization: Bearer {key}\r\n"
            return (await ask(gateway, post(headers=headers))).status

        assert (await status(one), await status(two)) == (200, 401)
        write(path, key_line("other", two_hash))
        while await status(two) != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await status(one) == 401
        write(path, "not a line")
        await until(lambda: "the keys before stay valid" in caplog.text)
        assert await status(two) == 200, "a bad file leaves the keys as they were"


async def test_a_tenant_that_only_the_file_names_is_an_error(path: Path) -> None:
    write(path, f"serach {HASH}")
    with pytest.raises(ConfigError, match="no tenant 'serach'; there are other, search team"):
        async with operated(tenancy=tenancy(path)):
            pass
