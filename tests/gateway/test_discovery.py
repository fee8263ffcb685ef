"""A gateway whose workers are listed in a file."""

import asyncio

from fake_worker import JSON_OK, FakeWorker, always, ask, gateway_before, post, until

from expediter.config import FileDiscovery


async def test_a_gateway_serves_with_the_workers_its_file_lists(tmp_path) -> None:
    path = tmp_path / "workers.json"
    discovery = FileDiscovery(path=str(path), poll_seconds=0.01)
    async with (
        FakeWorker(always(JSON_OK)) as one,
        FakeWorker(always(JSON_OK)) as two,
        gateway_before(discovery=discovery) as gateway,
    ):
        assert (await ask(gateway, post())).status == 503
        path.write_text(f'["http://127.0.0.1:{one.port}"]')
        await until(lambda: len(gateway.membership.ready()) == 1)
        assert (await ask(gateway, post())).status == 200
        path.write_text(f'["http://127.0.0.1:{two.port}"]')
        await until(lambda: list(gateway.membership.members) == [f"127.0.0.1:{two.port}"])
        await until(lambda: len(gateway.membership.ready()) == 1)
        answers = await asyncio.gather(*(ask(gateway, post()) for _ in range(8)))
        assert [a.status for a in answers] == [200] * 8
        assert len(two.received) == 8
