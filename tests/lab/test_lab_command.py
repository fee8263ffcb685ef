"""`expediter lab` as a process: it says where it is, answers, and leaves nothing behind."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import psutil
import pytest

COMMAND = [sys.executable, "-m", "expediter", "lab", "--port"]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*COMMAND, "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().partition("The lab is at ")[2].strip()


def test_it_prints_an_address_that_answers_and_ends_without_a_trace(
    process: subprocess.Popen[str],
) -> None:
    page = address(process)
    assert "Expediter lab" in httpx.get(page).text
    answered = httpx.get(f"{page.removesuffix('/lab')}/api/lab/routing", timeout=60)
    assert len(answered.json()) == 5
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGINT)
    assert process.wait(30) in {0, -signal.SIGINT, 130}
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    assert psutil.wait_procs(children, timeout=30)[1] == []


def test_its_processes_leave_when_it_is_killed(process: subprocess.Popen[str]) -> None:
    page = address(process)
    httpx.get(f"{page.removesuffix('/lab')}/api/lab/routing", timeout=60)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    assert psutil.wait_procs(children, timeout=30)[1] == []


def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run([*COMMAND, port], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: cannot listen on 127.0.0.1 port {port}: ")
    assert len(done.stderr.splitlines()) == 1
