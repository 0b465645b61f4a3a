"""Two pipelines of one HTTPS server: the same texts, also when one is lost; certificates replaced under streams;
nothing for strangers. The last test stops the server."""

from __future__ import annotations

import contextlib
import pickle
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
import trustme

from app.cli import main
from tests.support.metrics import values
from tests.support.server_process import SpectraServer, StreamedCompletion, check_stopped, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

LANES = {"Target", "Target-2"}
FLAGS = ("--name", "tiny", "--kv-gib", "0.02", "--max-sequences", "4", "--max-waiting", "8", "--grace", "0.2")
MORE = ("--host", "0.0.0.0", "--replicas", "2", "--speculator-actors", "2", "--draft-timeout", "0.5")
SEEDED: dict[str, Any] = {"max_tokens": 700, "temperature": 0.8, "seed": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, authority: trustme.CA) -> Iterator[SpectraServer]:
    with running(tiny_checkpoint, (*FLAGS, *MORE), authority) as started:
        wait_until(lambda: started.health().get("lanes_up") == 2, "the second lane does not start")
        yield started


@pytest.fixture(scope="module")
def expected(server: SpectraServer) -> list[int]:
    """The undisturbed answer to ``SEEDED``."""
    return server.token_ids(**SEEDED, speculative={"enabled": False})


def actors(server: SpectraServer, kind: str) -> list[psutil.Process]:
    found = []
    for process in server.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since it was listed
            if f"ray::{kind}" in " ".join(process.cmdline()):
                found.append(process)
    return found


def connected(server: SpectraServer, *protocols: str) -> ssl.SSLSocket:
    if protocols:
        server.trust.set_alpn_protocols(protocols)
    return server.trust.wrap_socket(socket.create_connection(("127.0.0.1", server.port)), server_hostname="127.0.0.1")


def test_only_https_is_served_to_clients_that_trust_the_authority(
    server: SpectraServer, authority: trustme.CA, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server.first_line == f"Ready: https://0.0.0.0:{server.port}/v1\n"
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{server.port}/health")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{server.base}/health")
    for protocol in ("h2", "http/1.1"):
        with connected(server, protocol) as peer:
            assert (peer.selected_alpn_protocol(), peer.version()) == (protocol, "TLSv1.3")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    load = ["load", "--url", server.base, "--requests", "2", "--max-tokens", "4"]
    assert main([*load, "--tls-ca", str(tmp_path / "ca.pem")]) == 0
    assert main(load) == 2
    assert "no server answers" in capsys.readouterr().err


def test_a_new_certificate_is_for_new_connections_and_open_ones_stay(
    server: SpectraServer, authority: trustme.CA, expected: list[int]
) -> None:
    stream = StreamedCompletion(server, **SEEDED)
    stream.until(5)

    def shown() -> bytes | None:
        with connected(server) as new:
            return new.getpeercert(True)

    with connected(server, "http/1.1") as old:
        before = old.getpeercert(True)
        (server.folder / "key.pem").write_text("no key")
        refused = "the certificate in use stays: --tls-key"
        wait_until(lambda: refused in server.log.read_text(), server.log.read_text)
        assert shown() == before
        server.renew_certificate(authority)

        def is_renewed() -> bool:
            with contextlib.suppress(OSError):  # HAProxy reloads
                return shown() != before
            return False

        wait_until(is_renewed, server.log.read_text)
        old.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert old.recv(12) == b"HTTP/1.1 200"
    assert stream.all_ids() == expected


class Intruder:
    """Creates a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_replicas_unpickle_nothing_of_a_peer_without_the_token(server: SpectraServer, tmp_path: Path) -> None:
    listening = set()
    for process in server.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            listening |= {one.laddr for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    listening = {one for one in listening if not one.ip.startswith(("127.", "::ffff:127.", "::1"))}
    assert server.port in {one.port for one in listening}  # HAProxy
    channels = {one for one in listening if one.port != server.port}
    assert channels  # Serve's own, between replicas
    intruder = pickle.dumps(Intruder(tmp_path / "here"))
    length = [len(intruder) & 127 | 128, len(intruder) >> 7]
    message = b"\x0a" + bytes(length) + intruder  # protobuf: field 1 has these bytes
    for address in channels:
        with grpc.insecure_channel(f"127.0.0.1:{address.port}") as channel:
            call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
            with pytest.raises(grpc.RpcError) as refused:
                call(message)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
    assert not (tmp_path / "here").exists()


def test_both_pipelines_write_the_same_text_and_report_their_figures(
    server: SpectraServer, expected: list[int]
) -> None:
    health = server.health()
    assert (health["status"], health["lanes"]) == ("ok", 2)
    assert health["blocks"] == health["Target.free_blocks"] + health["Target-2.free_blocks"]
    streams = [StreamedCompletion(server, **SEEDED | {"max_tokens": 3000}) for _ in range(4)]
    wait_until(lambda: (server.health()["Target.running"], server.health()["Target-2.running"]) == (2, 2))
    assert [stream.all_ids()[: len(expected)] for stream in streams] == [expected] * 4
    server.settled()
    text = server.http.get("/metrics").text
    assert values(text, "spectra:pipelines_up") == [2.0]
    for lane in LANES:
        assert values(text, "spectra:stage_busy_seconds_total", lane=lane)
        assert values(text, "spectra:load_seconds", lane=lane, phase="read")


def test_a_lost_stage_changes_no_text_and_new_requests_are_answered(server: SpectraServer, expected: list[int]) -> None:
    streams = [StreamedCompletion(server, **SEEDED) for _ in range(4)]
    for stream in streams:
        stream.until(50)
    actors(server, "StageActor")[0].kill()
    assert len(server.token_ids(max_tokens=5, ignore_eos=True)) == 5
    assert [stream.all_ids() for stream in streams] == [expected] * 4
    wait_until(lambda: server.health()["lanes_up"] == 2)
    assert server.settled()["pipelines_lost"] >= 1


@pytest.mark.parametrize("signals", [(signal.SIGSTOP, signal.SIGCONT), (signal.SIGKILL,)], ids=["hang", "die"])
def test_speculators_that_hang_or_die_cost_only_drafts(
    signals: tuple[signal.Signals, ...], server: SpectraServer, expected: list[int]
) -> None:
    lost = server.health()["pipelines_lost"]
    streams = [StreamedCompletion(server, **SEEDED, speculative={"method": "pld"}) for _ in range(4)]
    for stream in streams:
        stream.until(50)
    speculators = actors(server, "SpeculatorActor")
    for speculator in speculators:
        speculator.send_signal(signals[0])
    assert [stream.all_ids() for stream in streams] == [expected] * 4
    for speculator in speculators if len(signals) > 1 else ():
        speculator.send_signal(signals[1])
    assert server.settled()["pipelines_lost"] == lost

    def drafts() -> object:
        answer = server.complete(max_tokens=60, logit_bias={"9": 100}, speculative={"method": "pld"}).json()
        return answer["metrics"]["speculative_decoding"]["by_source"]

    wait_until(drafts, "no speculator drafts any more")


def test_streams_that_outlast_the_grace_period_end_with_an_error_event_and_nothing_is_left(
    server: SpectraServer,
) -> None:
    streams = [StreamedCompletion(server, max_tokens=3000, ignore_eos=True, seed=seed) for seed in (4, 5)]
    for stream in streams:
        stream.until(5)
    processes = server.processes()
    server.process.send_signal(signal.SIGINT)
    for stream in streams:
        stream.join()
        assert len(stream.token_ids) < 3000
        assert [error["code"] for error in stream.errors] == ["target_lost"]
        assert stream.ended_with.startswith('data: {"error"')
    check_stopped(server, processes)
