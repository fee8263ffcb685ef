"""Requests of one session stay together under the sticky policy, whatever their prompts are."""

import pytest
from fake_worker import JSON_OK, FakeWorker, always, ask, gateway_before, post

from expediter.config import RoutingConfig
from expediter.routing.sticky import Sticky


def sticky() -> Sticky:
    return Sticky(
        max_imbalance=0.2, slack_requests=8, block_size=16, num_blocks=160, num_points=100
    )


@pytest.mark.parametrize("way", ["header", "user", "own header", "header before user"])
async def test_a_session_has_one_worker_and_sessions_have_several(way: str) -> None:
    async def place(session: str, number: int) -> str:
        prompt, headers = f'"prompt": "{number}"', ""
        if way == "user":
            prompt += f', "user": "{session}"'
        elif way == "header before user":
            prompt += f', "user": "{number}"'
        if "header" in way:
            name = "X-Chat" if way == "own header" else "X-Session-Id"
            headers = f"{name}: {session}\r\n"
        body = b"{%b}" % prompt.encode()
        answer = await ask(gateway, post(body, headers=headers))
        return answer.headers["x-expediter-worker"]

    routing = RoutingConfig(session_header="x-chat" if way == "own header" else "x-session-id")
    async with (
        FakeWorker(always(JSON_OK), name="a") as a,
        FakeWorker(always(JSON_OK), name="b") as b,
        FakeWorker(always(JSON_OK), name="c") as c,
        gateway_before(a, b, c, policy=sticky(), routing=routing) as gateway,
    ):
        homes = [{await place(f"s{s}", n) for n in range(3)} for s in range(12)]
        assert all(len(home) == 1 for home in homes)
        assert set.union(*homes) == {"a", "b", "c"}


@pytest.mark.parametrize("user", ["7", "null", "{}", '"\\ud800"', '""', '"%s"' % ("x" * 2000)])
async def test_a_user_that_is_no_name_is_passed_on_and_means_nothing(user: str) -> None:
    body = b'{"prompt": "p", "user": %b}' % user.encode()
    async with (
        FakeWorker(always(JSON_OK), name="a") as worker,
        gateway_before(worker, policy=sticky()) as gateway,
    ):
        assert (await ask(gateway, post(body))).status == 200
        assert worker.received[0].body == body
