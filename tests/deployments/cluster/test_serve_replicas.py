"""Two pipelines behind one real HTTPS server: the same texts, no pause when one is lost, new certificates under running
streams, nothing for strangers; the last test stops it."""

from __future__ import annotations

import contextlib
import pickle
import re
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
import trustme

from app.cli import main
from tests.support.server_process import (
    FLAGS,
    READY_S,
    Server,
    Stream,
    check_a_signal_to_all_processes_stops_the_server,
    running,
)

pytestmark = pytest.mark.cluster

LANES = ("Target", "Target-2")
OF_ALL = ("plan", "connect", "ready")  # phases
OF_STAGES = ("import", "resolve", "check", "read", "build")
MORE = ("--host", "0.0.0.0", "--replicas", "2", "--speculator-actors", "2", "--draft-timeout", "0.5")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, authority: trustme.CA) -> Iterator[Server]:
    with running(tiny_checkpoint, (*FLAGS, *MORE), authority) as started:
        yield started


def actors(server: Server, kind: str) -> list[psutil.Process]:
    found = []
    for process in server.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since it was listed
            if f"ray::{kind}" in " ".join(process.cmdline()):
                found.append(process)
    return found


def stages(server: Server) -> list[psutil.Process]:
    return actors(server, "StageActor")


def both_up(server: Server) -> dict[str, Any]:
    deadline = time.monotonic() + READY_S
    while (health := server.health()).get("lanes_up") != 2:
        assert time.monotonic() < deadline, "the second lane does not come up"
        time.sleep(0.1)
    return health


def connected(server: Server, *protocols: str) -> ssl.SSLSocket:
    if protocols:
        server.trust.set_alpn_protocols(protocols)
    return server.trust.wrap_socket(socket.create_connection(("127.0.0.1", server.port)), server_hostname="127.0.0.1")


def test_only_https_is_spoken_to_clients_that_trust_the_authority(server: Server, authority: trustme.CA) -> None:
    assert server.first_line == f"Ready: https://0.0.0.0:{server.port}/v1\n"
    assert server.http.get("/health").status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{server.port}/health")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{server.base}/health")
    for protocol in ("h2", "http/1.1"):
        with connected(server, protocol) as peer:
            assert peer.selected_alpn_protocol() == protocol
            assert peer.version() == "TLSv1.3"


def test_a_new_certificate_is_shown_to_new_connections_and_those_that_are_open_stay(
    server: Server, authority: trustme.CA
) -> None:
    fields: dict[str, Any] = {"max_tokens": 700, "temperature": 0.8, "seed": 8, "ignore_eos": True}
    stream = Stream(server, **fields)
    stream.until(5)
    with connected(server, "http/1.1") as old:
        before = old.getpeercert(True)
        (server.folder / "key.pem").write_text("no key")
        deadline = time.monotonic() + 240
        while "the certificate in use stays: --tls-key" not in server.log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with connected(server) as again:
            assert again.getpeercert(True) == before
        server.renew_certificate(authority)
        while True:
            assert time.monotonic() < deadline + 60, server.log.read_text()
            with connected(server) as new:
                if new.getpeercert(True) != before:
                    break
            time.sleep(0.1)
        old.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert old.recv(12) == b"HTTP/1.1 200"
    assert stream.all_ids() == server.token_ids(**fields)


def test_spectra_load_speaks_https(
    server: Server, authority: trustme.CA, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    asked = ["load", "--url", server.base, "--requests", "2", "--max-tokens", "4"]
    assert main([*asked, "--tls-ca", str(tmp_path / "ca.pem")]) == 0
    assert main(asked) == 2
    assert "no server answers" in capsys.readouterr().err


class Intruder:
    """Creates a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_replicas_unpickle_nothing_of_a_peer_without_the_token_and_haproxy_shows_strangers_no_page(
    server: Server, tmp_path: Path
) -> None:
    listening = set()
    for process in server.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            listening |= {one.laddr for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    listening = {one for one in listening if not one.ip.startswith(("127.", "::ffff:127.", "::1"))}
    assert server.port in {one.port for one in listening}  # HAProxy
    listening = {one for one in listening if one.port != server.port}
    assert listening  # Serve's own channels between replicas
    intruder = pickle.dumps(Intruder(tmp_path / "here"))
    length = [len(intruder) & 127 | 128, len(intruder) >> 7]
    message = b"\x0a" + bytes(length) + intruder  # protobuf: field 1 has these bytes
    for address in listening:
        with grpc.insecure_channel(f"127.0.0.1:{address.port}") as channel:
            call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
            with pytest.raises(grpc.RpcError) as refused:
                call(message, timeout=240)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
    assert not (tmp_path / "here").exists()


def test_health_tells_of_both_lanes(server: Server) -> None:
    health = both_up(server)
    assert (health["status"], health["lanes"]) == ("ok", 2)
    assert health["blocks"] == health["Target.free_blocks"] + health["Target-2.free_blocks"]
    assert len(stages(server)) == 2


def test_both_lanes_write_the_same_text(server: Server) -> None:
    both_up(server)
    fields: dict[str, Any] = {"max_tokens": 1000, "temperature": 0.8, "seed": 5, "ignore_eos": True}
    streams = [Stream(server, **fields) for _ in range(4)]
    for stream in streams:
        stream.until(20)
    health = server.health()
    assert (health["Target.running"], health["Target-2.running"]) == (2, 2)
    texts = [stream.all_ids() for stream in streams]
    assert texts == [server.token_ids(**fields, speculative={"enabled": False})] * 4
    server.settled()


def test_new_requests_are_served_while_a_lost_stage_is_replaced(server: Server) -> None:
    both_up(server)
    fields: dict[str, Any] = {"max_tokens": 700, "temperature": 0.8, "seed": 8, "ignore_eos": True}
    wanted = server.token_ids(**fields)
    streams = [Stream(server, **fields) for _ in range(4)]
    for stream in streams:
        stream.until(50)
    stages(server)[0].kill()
    deadline = time.monotonic() + READY_S
    while server.health()["lanes_up"] == 2:
        assert time.monotonic() < deadline, "the loss is not noticed"
        time.sleep(0.01)
    served = 0
    while (health := server.health())["lanes_up"] < 2:
        assert health["status"] == "ok"  # one lane is enough to be ready
        assert len(server.token_ids(max_tokens=5, ignore_eos=True)) == 5
        served += 1
    assert served > 0
    assert [stream.all_ids() for stream in streams] == [wanted] * 4
    assert server.settled()["pipelines_lost"] >= 1


@pytest.mark.parametrize("signals", [(signal.SIGSTOP, signal.SIGCONT), (signal.SIGKILL,)], ids=["hangs", "dies"])
def test_speculators_that_hang_or_die_cost_drafts_and_nothing_else(
    signals: tuple[signal.Signals, ...], server: Server
) -> None:
    both_up(server)
    fields: dict[str, Any] = {"max_tokens": 400, "temperature": 0.8, "seed": 9, "ignore_eos": True}
    wanted = server.token_ids(**fields, speculative={"enabled": False})
    for _ in range(2):  # more than once
        lost = server.health()["pipelines_lost"]
        streams = [Stream(server, **fields, speculative={"method": "pld"}) for _ in range(4)]
        for stream in streams:
            stream.until(50)
        speculators = actors(server, "SpeculatorActor")
        for speculator in speculators:
            speculator.send_signal(signals[0])
        assert [stream.all_ids() for stream in streams] == [wanted] * 4
        for speculator in speculators if len(signals) > 1 else ():
            speculator.send_signal(signals[1])
        assert server.settled()["pipelines_lost"] == lost
    figures: dict[str, Any] = {"by_source": {}}
    deadline = time.monotonic() + READY_S
    while not figures["by_source"]:  # and they are back
        assert time.monotonic() < deadline, "no speculator drafts any more"
        answer = server.complete(max_tokens=60, logit_bias={"9": 100}, speculative={"method": "pld"}).json()
        figures = answer["metrics"]["speculative_decoding"]


def test_metrics_sum_over_lanes_and_name_every_stage(server: Server) -> None:
    both_up(server)
    text = server.http.get("/metrics").text
    assert 'spectra:pipelines_up{model_name="tiny"} 2.0' in text
    busy = [line for line in text.splitlines() if line.startswith("spectra:stage_busy_seconds_total")]
    assert {'lane="Target"', 'lane="Target-2"'} == {
        f'lane="{line.split("lane=")[1].split(chr(34))[1]}"' for line in busy
    }


def test_what_the_start_took_is_told_by_lane_stage_and_phase(server: Server) -> None:
    both_up(server)
    lines = [line for line in server.http.get("/metrics").text.splitlines() if line.startswith("spectra:load_")]
    found = {labels.group(1): float(line.rpartition(" ")[2]) for line in lines if (labels := re.search("{(.*)}", line))}
    of_all = {f'lane="{lane}",model_name="tiny",phase="{phase}",stage="all"' for lane in LANES for phase in OF_ALL}
    of_stages = {f'lane="{lane}",model_name="tiny",phase="{phase}",stage="0"' for lane in LANES for phase in OF_STAGES}
    sizes = {f'lane="{lane}",model_name="tiny",stage="0"' for lane in LANES}
    assert set(found) == of_all | of_stages | sizes
    assert all(found[one] > 0 for one in sizes)
    assert sum(found[one] for one in of_stages) > 0
    health = server.health()
    assert health["load_bytes"] == sum(found[one] for one in sizes)
    assert health["load_seconds"] > max(found[one] for one in of_stages if '"read"' in one)
    [told] = [line for line in server.log.read_text().splitlines() if "Target-2 is up" in line]
    assert "import" in told
    assert "GiB of weights" in told


def test_a_signal_from_a_terminal_lets_the_running_stream_end_and_leaves_nothing(server: Server) -> None:
    check_a_signal_to_all_processes_stops_the_server(server, signal.SIGINT)
