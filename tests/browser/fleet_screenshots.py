"""Pictures of the dashboard and the playground, of a real fleet under a little traffic."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MODEL = "SmolLM2-135M-Instruct"
NUM_CHATS, NUM_TURNS = 6, 5
SYSTEMS = (
    "You are the guide of a museum in an old lighthouse. Answer in two sentences. "
    + "The lamp is 31 metres above the rock, and 142 steps lead up to it. " * 14,
    "You help cooks. Be brief and precise. "
    + "A recipe says what is needed, then what is done, then how long it takes. " * 16,
)
QUESTIONS = ("How high is it?", "Who was here before?", "What should I bring?", "Why is that?")
Save = Callable[[str, bytes], None]


def take_fleet(browser: "Browser", save: Save) -> None:
    """Start a fleet, talk to it, and picture it."""
    with _up() as (api, pages), ThreadPoolExecutor(NUM_CHATS) as chats:
        done = [chats.submit(_chat, api, number) for number in range(NUM_CHATS)]
        page = _page(browser, f"{pages}/playground", width=1280, height=980)
        page.locator("#suggestions button").first.wait_for()
        for place, question in enumerate(("How high is the lighthouse?", "Who was the keeper?")):
            page.locator("#message").fill(question)
            page.locator("#message").press("Enter")
            page.locator(".told").nth(place).wait_for()
        save("playground", page.screenshot())
        for each in done[: NUM_CHATS // 2]:
            each.result()
        page = _page(browser, f"{pages}/dashboard", width=1280, height=1370)
        page.locator("#decisions tr").nth(9).wait_for()
        save("dashboard", page.screenshot())
        page = _page(browser, f"{pages}/dashboard", width=1280, height=860, scheme="dark")
        page.locator("#decisions tr", has_text="done").first.get_by_role("button").click()
        page.locator(".scores tbody tr").first.wait_for()
        save("dashboard-request", page.screenshot())
        page = _page(browser, f"{pages}/dashboard", width=390, height=844, scheme="dark")
        page.locator("#workers li").first.wait_for()
        save("dashboard-phone", page.screenshot())


def _page(
    browser: "Browser", url: str, *, width: int, height: int, scheme: str = "light"
) -> "Page":
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]
        reduced_motion="reduce",
    )
    context.set_default_timeout(180_000)
    page = context.new_page()
    page.goto(url)
    return page


@contextmanager
def _up() -> Iterator[tuple[str, str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "expediter", "up", "--workers", "3", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.search(r"talk to it: (\S+)", line):
                    yield f"http://127.0.0.1:{port}", found[1]
                    return
            raise RuntimeError("the fleet did not start")
        finally:
            process.send_signal(signal.SIGINT)


def _chat(api: str, number: int) -> None:
    """One conversation, turn after turn."""
    messages = [{"role": "system", "content": SYSTEMS[number % len(SYSTEMS)]}]
    for turn in range(NUM_TURNS):
        question = QUESTIONS[(number + turn) % len(QUESTIONS)]
        messages.append({"role": "user", "content": question})
        body: dict[str, object] = {
            "model": MODEL,
            "messages": messages,
            "max_tokens": 16 + 3 * number,
        }
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        with httpx.stream("POST", f"{api}/v1/chat/completions", json=body, timeout=180) as answer:
            words = [_words(line) for line in answer.iter_lines() if line.startswith("data: {")]
        messages.append({"role": "assistant", "content": "".join(words)})


def _words(line: str) -> str:
    choices = json.loads(line.removeprefix("data: "))["choices"]
    return choices[0]["delta"].get("content") or "" if choices else ""
