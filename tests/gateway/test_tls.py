"""TLS on both sides, with certificates of an authority made for the test."""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
from fake_worker import JSON_OK, FakeWorker, always, until
from msgspec.structs import replace
from operated import operated

from expediter.config import TlsConfig, WorkerEndpoint, WorkerTlsConfig
from expediter.errors import ConfigError
from expediter.gateway.gateway import Gateway
from expediter.gateway.tls import client_tls, worker_tls


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def write_pair(authority: trustme.CA, folder: Path, name: str = "127.0.0.1") -> TlsConfig:
    """A certificate and its key as files, each time other ones."""
    issued = authority.issue_cert(name)
    certificate, key = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return TlsConfig(certificate=str(certificate), key=str(key))


def spoil(tls: TlsConfig) -> None:
    Path(tls.key).write_text("not a key", "utf-8")


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


class TlsWorker(FakeWorker):
    """One behind https://, with a certificate for `host`."""

    def __init__(self, authority: trustme.CA, *, host: str = "127.0.0.1") -> None:
        super().__init__(always(JSON_OK), name="w")
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(host).configure_cert(self._context)

    async def __aenter__(self) -> "TlsWorker":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def endpoint(self) -> WorkerEndpoint:
        return WorkerEndpoint(url=f"https://127.0.0.1:{self.port}", worker_id=self.name)


async def serial_of(gateway: Gateway, context: ssl.SSLContext) -> str:
    """The number of the certificate that a new connection is met with."""
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=context)
    serial: str = writer.get_extra_info("peercert")["serialNumber"]
    writer.transport.abort()
    return serial


async def ask_over_tls(gateway: Gateway, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=context)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b'content-length: 14\r\n\r\n{"prompt":"a"}'
    )
    answer = await reader.read()
    writer.close()
    return answer


async def test_clients_speak_tls_and_workers_learn_of_it(
    authority: trustme.CA, tmp_path: Path
) -> None:
    tls = write_pair(authority, tmp_path)
    async with FakeWorker(always(JSON_OK)) as worker, operated(worker, tls=tls) as (gateway, _):
        answer = await ask_over_tls(gateway, trusting(authority))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert worker.received[0].values("x-forwarded-proto") == ["https"]
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask_over_tls(gateway, ssl.create_default_context())
        old = trusting(authority)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        assert (await ask_over_tls(gateway, old)).startswith(b"HTTP/1.1 200 ")


async def test_one_who_speaks_no_tls_is_turned_away_and_the_port_goes_on(
    authority: trustme.CA, tmp_path: Path
) -> None:
    tls = write_pair(authority, tmp_path)
    async with FakeWorker(always(JSON_OK)) as worker, operated(worker, tls=tls) as (gateway, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        with suppress(ConnectionError):
            assert not (await reader.read()).startswith(b"HTTP")
        writer.close()
        assert (await ask_over_tls(gateway, trusting(authority))).startswith(b"HTTP/1.1 200 ")


async def test_a_new_certificate_is_used_from_the_next_reload(
    authority: trustme.CA, tmp_path: Path
) -> None:
    context, tls = trusting(authority), write_pair(authority, tmp_path)
    async with operated(tls=tls) as (gateway, _):
        first = await serial_of(gateway, context)
        write_pair(authority, tmp_path)
        assert await serial_of(gateway, context) == first
        gateway.reconfigure(gateway.config)
        second = await serial_of(gateway, context)
        assert second != first
        spoil(tls)
        with pytest.raises(ConfigError, match=r"gateway\.tls"):
            gateway.reconfigure(gateway.config)
        assert await serial_of(gateway, context) == second
        write_pair(authority, tmp_path)
        assert gateway.reconfigure(replace(gateway.config, tls=None)) == ["tls"]


async def test_workers_of_a_private_authority_are_trusted_if_it_is_named(
    authority: trustme.CA, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    trusted = WorkerTlsConfig(ca=str(ca))
    async with (
        TlsWorker(authority) as worker,
        operated(worker, worker_tls=trusted) as (gateway, admin),
    ):
        answer = await ask_plain(gateway)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert (await admin.get("/workers")).json()[0]["url"].startswith("https://")


async def ask_plain(gateway: Gateway) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b'content-length: 14\r\n\r\n{"prompt":"a"}'
    )
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("host", ["127.0.0.1", "worker.example"])
async def test_a_worker_that_cannot_be_trusted_gets_nothing(
    host: str, authority: trustme.CA, tmp_path: Path
) -> None:
    """One is of an unknown authority; the other of a known one, for another host."""
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    trusted = WorkerTlsConfig(ca=str(ca) if host == "worker.example" else None)
    async with TlsWorker(authority, host=host) as worker, operated(worker_tls=trusted) as (g, _):
        member = g.membership.add(worker.endpoint)
        await until(lambda: member.num_failures > 0 or member.health == "down")
        assert (await ask_plain(g)).startswith(b"HTTP/1.1 503 ")
        assert worker.received == []


async def test_without_verification_any_certificate_will_do(authority: trustme.CA) -> None:
    loose = WorkerTlsConfig(verify=False)
    async with (
        TlsWorker(authority, host="worker.example") as worker,
        operated(worker, worker_tls=loose) as (gateway, _),
    ):
        assert (await ask_plain(gateway)).startswith(b"HTTP/1.1 200 ")


def test_files_that_cannot_be_used_are_named(authority: trustme.CA, tmp_path: Path) -> None:
    tls = write_pair(authority, tmp_path)
    authority.issue_cert("other").private_key_pem.write_to_path(tls.key)
    with pytest.raises(ConfigError, match=r"cert\.pem and .*key\.pem cannot be used"):
        client_tls(tls)
    with pytest.raises(ConfigError, match=r"none\.pem: No such file"):
        worker_tls(WorkerTlsConfig(ca=str(tmp_path / "none.pem")))
    (tmp_path / "none.pem").write_text("nothing", "utf-8")
    with pytest.raises(ConfigError, match=r"gateway\.worker-tls\.ca"):
        worker_tls(WorkerTlsConfig(ca=str(tmp_path / "none.pem")))
