"""Threads ask the kernel for what they need, and for nothing more."""

import ctypes
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable

import pytest

from expediter.gateway.threads import NICENESS, PROMPT_SLICE_NS, be_prompt, make_way

GET_ATTRIBUTES = {"x86_64": 315, "aarch64": 275}
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in GET_ATTRIBUTES,
    reason="threads have these settings on Linux",
)


def settings() -> tuple[int, int]:
    """This thread's niceness and slice; the slice is 0 where the kernel does not tell."""
    attributes = ctypes.create_string_buffer(48)
    number = GET_ATTRIBUTES[platform.machine()]
    assert ctypes.CDLL(None).syscall(number, 0, attributes, 48, 0) == 0
    _, _, _, niceness, _, slice_ns, _, _ = struct.unpack("=IIQiIQQQ", attributes.raw)
    return niceness, slice_ns


def after(*steps: Callable[[], None]) -> tuple[int, int]:
    """What a new thread's settings are after these steps."""
    found: list[tuple[int, int]] = []

    def run() -> None:
        for step in steps:
            step()
        found.append(settings())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_a_prompt_thread_has_short_slices_and_its_niceness() -> None:
    niceness, slice_ns = after()
    if slice_ns == 0:
        pytest.skip("this kernel knows no slices of a thread")
    assert after(be_prompt) == (niceness, PROMPT_SLICE_NS)
    assert slice_ns > PROMPT_SLICE_NS


def test_a_thread_in_the_background_is_nice_and_has_the_usual_slices() -> None:
    niceness, slice_ns = after()
    assert after(be_prompt, make_way) == (max(niceness, NICENESS), slice_ns)
    assert after(make_way, make_way) == after(make_way)


def test_a_thread_with_another_policy_is_left_alone() -> None:
    def batch() -> None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    assert after(batch, be_prompt) == after(batch)


def test_the_thread_that_asks_is_the_only_one() -> None:
    before = settings()
    after(be_prompt, make_way)
    assert settings() == before
