"""Workers found in files and DNS, and what becomes of a fleet that follows."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest
from fake_client import FakeClient
from hypothesis import given
from hypothesis.strategies import dictionaries, sampled_from

from expediter.cluster.membership import Membership, WorkerStatus
from expediter.cluster.sources.dns import DnsSource
from expediter.cluster.sources.file import FileSource, parse_workers
from expediter.cluster.sources.follow import WorkerSource, follow, reconcile
from expediter.config import (
    DnsDiscovery,
    FileDiscovery,
    HealthConfig,
    WorkerEndpoint,
)
from expediter.load import WorkerId
from expediter.routing.prefix_index import PrefixIndex

ENDPOINTS = dictionaries(
    sampled_from([WorkerId(name) for name in "abcd"]),
    sampled_from([WorkerEndpoint(url=f"http://h:{port}") for port in range(3)]),
)


@given(current=ENDPOINTS, wanted=ENDPOINTS)
def test_removing_and_adding_gives_what_is_wanted_and_touches_nothing_else(current, wanted) -> None:
    changes = reconcile(current, wanted)
    kept = {name: e for name, e in current.items() if name not in changes.remove}
    assert all(wanted[name] == endpoint for name, endpoint in kept.items())
    added = {name: e for name, e in wanted.items() if name not in kept}
    assert kept | added == wanted
    assert changes.add == list(added.values())


def test_a_list_of_workers_is_toml_or_json_objects_or_bare_urls() -> None:
    both = [WorkerEndpoint(url="http://a:1"), WorkerEndpoint(url="http://b:2", worker_id="b")]
    toml = b'[[workers]]\nurl = "http://a:1"\n[[workers]]\nurl = "http://b:2"\nworker-id = "b"'
    assert parse_workers(toml, is_json=False) == both
    text = b'["http://a:1", {"url": "http://b:2", "worker-id": "b"}]'
    assert parse_workers(text, is_json=True) == both
    assert parse_workers(b'{"workers": %b}' % text, is_json=True) == both
    assert parse_workers(b"workers = []", is_json=False) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b'[{"url": "http://a', "not JSON"),
        (b"{}", "no list called workers"),
        (b'[{"urls": "http://a:1"}]', "workers: .*url"),
        (b"3", "workers: Expected `array`"),
    ],
)
def test_a_bad_list_is_refused_with_the_reason(content: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_workers(content, is_json=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def following(source: WorkerSource) -> AsyncIterator[Membership]:
    """A membership that follows the source, besides one worker of its own."""
    membership = Membership(
        connect=lambda _: FakeClient(),
        index=PrefixIndex(clock=lambda: 0.0, block_size=4, assumed_capacity=100),
        interval_seconds=0.01,
        config=HealthConfig(drain_seconds=30),
    )
    membership.add(WorkerEndpoint(url="http://own:1"))
    tasks = [asyncio.create_task(membership.run())]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(follow(membership, source)))
    try:
        yield membership
    finally:
        for task in reversed(tasks):
            task.cancel()
            await asyncio.wait([task])


async def test_a_fleet_follows_its_file_and_a_half_written_one_changes_nothing(tmp_path) -> None:
    path = tmp_path / "fleet.json"
    source = FileSource(FileDiscovery(path=str(path), poll_seconds=0.01))
    async with following(source) as membership:
        members = membership.members
        path.write_text('["http://a:1", "http://b:1"]')
        await until(lambda: set(members) == {"own:1", "a:1", "b:1"})
        path.write_text('["http://a:1", "http:')
        await asyncio.sleep(0.05)
        path.write_text("")
        await asyncio.sleep(0.05)
        path.unlink()
        await asyncio.sleep(0.05)
        assert set(members) == {"own:1", "a:1", "b:1"}
        path.write_text('["http://b:1", "http://c:1", "nonsense"]')
        await until(lambda: set(members) == {"own:1", "b:1", "c:1"})


async def test_a_worker_that_vanishes_finishes_what_it_has_and_may_come_back(tmp_path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text('["http://a:1", "http://b:1"]')
    source = FileSource(FileDiscovery(path=str(path), poll_seconds=0.01))
    async with following(source) as membership:
        await until(lambda: len(membership.ready()) == 3)
        a, b = membership.members[WorkerId("a:1")], membership.members[WorkerId("b:1")]
        a.begin()
        b.begin()
        path.write_text("[]")
        await until(lambda: a.status is b.status is WorkerStatus.DRAINING)
        path.write_text('["http://b:1"]')
        await until(lambda: b.status is WorkerStatus.UP)
        b.end()
        a.end()
        await until(lambda: "a:1" not in membership.members)
        await asyncio.sleep(0.05)
        assert membership.members[WorkerId("b:1")] is b


async def test_a_worker_whose_endpoint_changed_is_replaced_when_idle(tmp_path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('[[workers]]\nurl = "http://a:1"\nworker-id = "w"')
    source = FileSource(FileDiscovery(path=str(path), poll_seconds=0.01))
    async with following(source) as membership:
        await until(lambda: len(membership.ready()) == 2)
        old = membership.members[WorkerId("w")]
        old.begin()
        path.write_text('[[workers]]\nurl = "http://a:2"\nworker-id = "w"')
        await until(lambda: old.is_draining)
        path.write_text('[[workers]]\nurl = "http://a:3"\nworker-id = "w"')
        await asyncio.sleep(0.1)
        assert membership.members[WorkerId("w")] is old
        old.end()
        await until(lambda: membership.members[WorkerId("w")].endpoint.url == "http://a:3")
        assert len(membership.members) == 2


class NameServer(asyncio.DatagramProtocol):
    """Answers from a table; what is not there does not exist."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: object) -> None:
        import dns.message
        import dns.rcode
        import dns.rdatatype
        import dns.rrset

        query = dns.message.from_wire(data)
        question = query.question[0]
        reply = dns.message.make_response(query)
        kind = dns.rdatatype.to_text(question.rdtype)
        name = question.name.to_text(omit_final_dot=True)
        found = self.records.get((name, kind), [])
        if found:
            reply.answer.append(dns.rrset.from_text(question.name, 1, "IN", kind, *found))
        elif not any(known == name for known, _ in self.records):
            reply.set_rcode(dns.rcode.NXDOMAIN)
        self.transport.sendto(reply.to_wire(), addr)  # type: ignore[attr-defined]


@asynccontextmanager
async def name_server() -> AsyncIterator[tuple[NameServer, str]]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    try:
        yield server, f"127.0.0.1:{transport.get_extra_info('sockname')[1]}"
    finally:
        transport.close()


async def test_srv_records_name_hosts_and_ports_and_a_failing_server_changes_nothing() -> None:
    pytest.importorskip("dns")
    async with name_server() as (server, address):
        key = ("_http._tcp.fleet", "SRV")
        server.records[key] = ["0 1 8001 b.fleet.", "0 1 8000 a.fleet."]
        config = DnsDiscovery(name=key[0], record="srv", nameserver=address, poll_seconds=0.01)
        async with following(DnsSource(config)) as membership:
            members = membership.members
            await until(lambda: set(members) == {"own:1", "a.fleet:8000", "b.fleet:8001"})
            server.records.clear()
            await asyncio.sleep(0.1)
            assert set(members) == {"own:1", "a.fleet:8000", "b.fleet:8001"}
            server.records[key] = ["0 1 8000 a.fleet."]
            await until(lambda: set(members) == {"own:1", "a.fleet:8000"})


async def test_addresses_of_both_families_get_the_configured_port() -> None:
    pytest.importorskip("dns")
    async with name_server() as (server, address):
        server.records = {("fleet", "A"): ["10.0.0.1"], ("fleet", "AAAA"): ["fd00::1"]}
        config = DnsDiscovery(name="fleet", port=81, nameserver=address, poll_seconds=0.01)
        async with aclosing(DnsSource(config).watch()) as lists:
            found = await anext(lists)
        assert [e.url for e in found] == ["http://10.0.0.1:81", "http://[fd00::1]:81"]


async def test_the_systems_resolver_needs_no_library() -> None:
    source = DnsSource(DnsDiscovery(name="localhost", port=81, poll_seconds=0.01))
    async with aclosing(source.watch()) as lists:
        assert "http://127.0.0.1:81" in [e.url for e in await anext(lists)]
