"""Workers found in Kubernetes: its official client, and an API server on loopback."""

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from test_sources import following, until

from expediter.cluster.sources.kubernetes import KubernetesSource
from expediter.config import KubernetesDiscovery


class ApiServer(BaseHTTPRequestHandler):
    """As much of a Kubernetes API server as EndpointSlices take."""

    protocol_version = "HTTP/1.1"
    slices: dict[str, dict[str, object]]
    events: "queue.Queue[dict[str, object] | None]"
    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        if "watch=true" not in self.path.lower():
            items = list(self.slices.values())
            body = json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while (event := self.events.get()) is not None:
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
            if event["type"] == "ERROR":
                break
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None: ...


def endpoint_slice(name: str, *addresses: str, ready: bool | None = None) -> dict[str, object]:
    return {
        "metadata": {"name": name},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [a], "conditions": {"ready": ready}} for a in addresses],
        "ports": [{"name": "metrics", "port": 9}, {"name": "http", "port": 8000}],
    }


@contextmanager
def api_server(tmp_path: Path) -> Iterator[tuple[type[ApiServer], KubernetesDiscovery]]:
    class Handler(ApiServer):
        slices: dict[str, dict[str, object]] = {}  # noqa: RUF012
        events: "queue.Queue[dict[str, object] | None]" = queue.Queue()
        requests: list[str] = []  # noqa: RUF012

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    kubeconfig = tmp_path / "kubeconfig"
    url = f"http://127.0.0.1:{server.server_port}"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    try:
        yield (
            Handler,
            KubernetesDiscovery(service="llm", port_name="http", kubeconfig=str(kubeconfig)),
        )
    finally:
        for _ in range(8):
            Handler.events.put(None)
        server.shutdown()
        server.server_close()
        thread.join()


async def test_a_fleet_follows_a_services_endpoint_slices(tmp_path) -> None:
    pytest.importorskip("kubernetes")
    with api_server(tmp_path) as (api, config):
        api.slices["s"] = endpoint_slice("s", "10.0.0.1", "10.0.0.2")
        async with following(KubernetesSource(config)) as membership:
            members = membership.members
            await until(lambda: set(members) == {"own:1", "10.0.0.1:8000", "10.0.0.2:8000"})
            assert "labelSelector=kubernetes.io/service-name%3Dllm" in api.requests[0]
            more = endpoint_slice("t", "10.0.0.3", ready=True)
            api.events.put({"type": "ADDED", "object": more})
            await until(lambda: "10.0.0.3:8000" in members)
            gone = endpoint_slice("s", "10.0.0.1", ready=False)
            api.events.put({"type": "MODIFIED", "object": gone})
            await until(lambda: set(members) == {"own:1", "10.0.0.3:8000"})
            api.slices = {"s": endpoint_slice("s", "10.0.0.9")}
            expired = {"kind": "Status", "code": 410, "message": "too old resource version"}
            api.events.put({"type": "ERROR", "object": expired})
            await until(lambda: set(members) == {"own:1", "10.0.0.9:8000"})
            assert "resourceVersion=7" in api.requests[1]
            api.events.put({"type": "DELETED", "object": endpoint_slice("s")})
            await until(lambda: set(members) == {"own:1"})


async def test_a_cluster_that_cannot_be_asked_changes_nothing(tmp_path, monkeypatch) -> None:
    pytest.importorskip("kubernetes")
    monkeypatch.setattr("expediter.cluster.sources.kubernetes.RETRY_SECONDS", 0.01)
    with api_server(tmp_path) as (api, config):
        api.slices["s"] = endpoint_slice("s", "10.0.0.1")
        async with following(KubernetesSource(config)) as membership:
            await until(lambda: "10.0.0.1:8000" in membership.members)
            good, api.slices = api.slices, {"s": {"metadata": {"name": "s"}, "endpoints": 3}}
            num_requests = len(api.requests)
            api.events.put(None)  # the watch ends, and the next list cannot be read
            await until(lambda: len(api.requests) > num_requests + 2)
            assert "10.0.0.1:8000" in membership.members
            api.slices = good | {"t": endpoint_slice("t", "10.0.0.2")}
            await until(lambda: "10.0.0.2:8000" in membership.members)
