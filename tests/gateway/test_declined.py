"""A worker's 503: the client's answer, unless it says that the request was not begun."""

import pytest
from fake_worker import JSON_OK, OK, FakeWorker, always, ask, gateway_before, post

from expediter.errors import WorkerUnavailable
from expediter.worker.replies import failure_response


def unavailable(body: bytes, *, extra: bytes = b"") -> bytes:
    head = OK.replace(b"200 OK", b"503 Service Unavailable") + extra
    return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)


BUSY = (
    b'{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try '
    b'again later or on a different instance.","type":"Service Unavailable","code":503}}'
)
SCALING = b'{"error":"The model is currently scaling. Please try again later."}'
LEAVING = bytes(failure_response(WorkerUnavailable("this worker is shutting down")).body)
BROKEN_OFF = b'{"error":{"message":"the server shut down before the answer was complete"}}'


@pytest.mark.parametrize("body", [BUSY, SCALING, LEAVING])
@pytest.mark.parametrize("extra", [b"", b"connection: close\r\n"])
async def test_a_worker_that_says_it_did_not_begin_is_replaced(body: bytes, extra: bytes) -> None:
    async with (
        FakeWorker(always(unavailable(body, extra=extra)), name="a") as busy,
        FakeWorker(always(JSON_OK), name="b") as free,
        gateway_before(busy, free) as gateway,
    ):
        answers = [await ask(gateway, post(b'{"prompt": "%d"}' % i)) for i in range(4)]
        assert [a.status for a in answers] == [200] * 4
        assert 0 < len(busy.received) == gateway.dispatcher.log.num_retries


@pytest.mark.parametrize("body", [BROKEN_OFF, b"{}", b"x" * 5000, b""])
async def test_any_other_503_is_the_answer(body: bytes) -> None:
    async with (
        FakeWorker(always(unavailable(body, extra=b"retry-after: 7\r\n")), name="a") as broken,
        gateway_before(broken) as gateway,
    ):
        answer = await ask(gateway, post())
        assert (answer.status, answer.body) == (503, body)
        assert answer.headers["retry-after"] == "7"
        assert len(broken.received) == 1


async def test_when_all_decline_the_answer_is_503_and_each_was_asked_once() -> None:
    async with (
        FakeWorker(always(unavailable(BUSY)), name="a") as one,
        FakeWorker(always(unavailable(BUSY)), name="b") as two,
        gateway_before(one, two) as gateway,
    ):
        answer = await ask(gateway, post())
        assert answer.status == 503
        assert b'"service_unavailable"' in answer.body
        assert [len(w.received) for w in (one, two)] == [1, 1]
