"""The supervisor over real processes: tiny HTTP servers that die when told to."""

import asyncio
import os
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from expediter.config import FleetConfig
from expediter.errors import ConfigError
from expediter.fleet.plan import some_free_port
from expediter.fleet.probe import is_healthy
from expediter.fleet.process import FleetProcess, ProcessSpec
from expediter.fleet.supervisor import ProcessFailed, Supervisor

SERVER = """
    import http.server, sys
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()
        def log_message(self, *args):
            pass
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
CONFIG = FleetConfig(stop_seconds=5.0, restart_seconds=0.02, max_restart_seconds=1.0)


def server(tmp_path: Path, name: str = "a", *, before: str = "") -> FleetProcess:
    port = some_free_port("127.0.0.1")
    code = before + textwrap.dedent(SERVER)
    return process(tmp_path, name, code, port=port)


def process(tmp_path: Path, name: str, code: str, *, port: int = 9) -> FleetProcess:
    spec = ProcessSpec(
        name=name,
        command=[sys.executable, "-c", code, str(port)],
        ready_url=f"http://127.0.0.1:{port}/health",
        log=tmp_path / f"{name}.log",
    )
    return FleetProcess(spec, environment=dict(os.environ))


def supervise(
    *processes: FleetProcess, config: FleetConfig = CONFIG
) -> tuple[Supervisor, list[str]]:
    lines: list[str] = []
    supervisor = Supervisor(
        config, processes=processes, probe=is_healthy, clock=time.monotonic, report=lines.append
    )
    return supervisor, lines


@asynccontextmanager
async def running(supervisor: Supervisor) -> AsyncIterator[None]:
    try:
        await supervisor.start()
        keeping = asyncio.create_task(supervisor.run())
        yield
        keeping.cancel()
        await asyncio.wait([keeping])
    finally:
        await supervisor.stop()


async def eventually(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not claim():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_all_are_ready_after_start_and_gone_after_stop(tmp_path: Path) -> None:
    processes = [server(tmp_path, name) for name in "abc"]
    supervisor, lines = supervise(*processes)
    async with running(supervisor):
        assert {line.split()[0] for line in lines} == {"a", "b", "c"}
        pids = [process.pid for process in processes]
        for one in processes:
            assert await is_healthy(one.spec.ready_url)
    assert not any(psutil.pid_exists(pid) for pid in pids if pid)


async def test_a_process_that_dies_is_started_again_and_the_others_are_left_alone(
    tmp_path: Path,
) -> None:
    victim, other = server(tmp_path, "victim"), server(tmp_path, "other")
    supervisor, lines = supervise(victim, other)
    async with running(supervisor):
        dead, untouched = victim.pid, other.pid
        assert dead is not None
        os.kill(dead, signal.SIGKILL)
        await eventually(lambda: len([line for line in lines if "is ready" in line]) == 3)
        assert victim.pid != dead
        assert other.pid == untouched
        assert any("victim was killed by SIGKILL; starting it again" in line for line in lines)


async def test_each_death_in_a_row_doubles_the_pause(tmp_path: Path) -> None:
    flag = tmp_path / "ready-once"
    once = (
        f"import os, sys\nif os.path.exists({str(flag)!r}): sys.exit(7)\nopen({str(flag)!r}, 'w')\n"
    )
    one = server(tmp_path, before=once)
    supervisor, lines = supervise(one)
    async with running(supervisor):
        assert one.pid is not None
        os.kill(one.pid, signal.SIGTERM)
        await eventually(lambda: len(lines) >= 5)
    pauses = [float(line.split("again in ")[1].split()[0]) for line in lines[1:5]]
    assert pauses == [0.02, 0.04, 0.08, 0.16]
    assert "ended with status 7" in lines[2]


async def test_one_that_never_becomes_ready_fails_the_start_with_the_end_of_its_log(
    tmp_path: Path,
) -> None:
    broken = process(tmp_path, "broken", "print('line one'); raise SystemExit('boom')")
    fine = server(tmp_path, "fine")
    supervisor, _ = supervise(broken, fine)
    with pytest.raises(ExceptionGroup) as raised:
        async with running(supervisor):
            pass
    assert raised.group_contains(ProcessFailed, match=r"broken: ended with status 1(.|\n)*boom")
    assert not fine.is_running


async def test_one_that_says_the_configuration_is_wrong_fails_with_that_one_line(
    tmp_path: Path,
) -> None:
    code = "import sys; print('noise', flush=True); sys.stderr.write('error: no such model\\n')"
    code += "; sys.exit(2)"
    supervisor, _ = supervise(process(tmp_path, "worker-0", code))
    with pytest.raises(ExceptionGroup) as raised:
        async with running(supervisor):
            pass
    assert raised.group_contains(ConfigError, match=r"^worker-0: no such model$")


async def test_one_that_hangs_while_starting_is_given_up(tmp_path: Path) -> None:
    hanging = process(tmp_path, "slow", "import time; time.sleep(60)")
    config = FleetConfig(start_seconds=0.3, stop_seconds=5.0)
    supervisor, _ = supervise(hanging, config=config)
    with pytest.raises(ExceptionGroup) as raised:
        async with running(supervisor):
            pass
    assert raised.group_contains(ProcessFailed, match=r"slow: not ready after 0\.3 s")
    assert not hanging.is_running


async def test_one_that_ignores_sigterm_is_killed_at_the_deadline(tmp_path: Path) -> None:
    stubborn = server(tmp_path, before=STUBBORN)
    supervisor, _ = supervise(stubborn, config=FleetConfig(stop_seconds=0.2))
    async with running(supervisor):
        pass
    assert stubborn.returncode == -signal.SIGKILL


async def test_a_killed_supervisor_leaves_no_process_behind(tmp_path: Path) -> None:
    child = (
        "from expediter.fleet.process import exit_with_parent; import time; exit_with_parent(0.2)"
    )
    child += "; open(__import__('sys').argv[1], 'w').close(); time.sleep(60)"
    up = tmp_path / "up"
    parent = f"""
import asyncio, os, sys
from pathlib import Path
from expediter.fleet.process import FleetProcess, ProcessSpec
async def main():
    spec = ProcessSpec(name="c", command=[sys.executable, "-c", {child!r}, {str(up)!r}],
                       ready_url="", log=Path({str(tmp_path / "c.log")!r}))
    process = FleetProcess(spec, environment=dict(os.environ))
    await process.start()
    print(process.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", parent, stdout=asyncio.subprocess.PIPE
    )
    assert supervisor.stdout is not None
    orphan = int(await supervisor.stdout.readline())
    await eventually(up.exists)
    supervisor.kill()
    await supervisor.wait()
    await eventually(lambda: _is_gone(orphan))


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
