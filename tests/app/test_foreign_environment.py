"""A user's folder, proxy and temporary folder change nothing in processes of spectra-serve."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent import futures
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import grpc
import httpx
import pytest

import spectra_serve
from app.serving.guide import CURL_PROXIES, command
from engine.errors import ConfigError
from spectra_serve import HOME, LOOPBACK, PRELOADED, build_app, prepare_environment
from tests.support.broken_checkpoints import write_json
from tests.support.server_process import FLAGS, SpectraServer, spectra
from tests.support.tiny_models import saved_family
from tests.support.waiting import LIMIT_S

PROXY = "http://127.0.0.1:9"
RUN = "raise RuntimeError(open(__file__ + '.ran', 'w'))\n"  # of a user's module: it leaves a trace if it is imported
GRPC = f"{LOOPBACK},0.0.0.0/0,::/0"


def without_proxy(hosts: str, grpc: str = GRPC) -> dict[str, str]:
    return {"no_proxy": hosts, "NO_PROXY": hosts, "no_grpc_proxy": grpc}


def write_modules(folder: Path, *names: str) -> Path:
    """Write modules that leave a trace and fail when they are imported; return the folder."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RUN)
    return folder


def imported_modules(folder: Path) -> list[Path]:
    return list(folder.rglob("*.ran"))


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a process that searches ``folder`` for modules before any other."""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


@pytest.mark.cluster
def test_packages_of_ours_are_not_taken_from_the_current_folder(tmp_path: Path) -> None:
    names = spectra_serve.PACKAGES
    write_modules(tmp_path, *(f"{name}/__init__.py" for name in names))
    code = f"import spectra_serve, {', '.join(names)}; print(*(one.__file__ for one in ({', '.join(names)})))"
    done = run_python(code, tmp_path)
    assert done.stdout.split() == [str(HOME / name / "__init__.py") for name in names], done.stderr
    assert not imported_modules(tmp_path)


@pytest.mark.cluster
def test_a_process_that_has_imported_another_app_is_refused(tmp_path: Path) -> None:
    (tmp_path / "app.py").touch()
    done = run_python("import app; import spectra_serve", tmp_path)
    assert f"ImportError: package app of spectra-serve is needed, but {tmp_path}/app.py is imported" in done.stderr


def test_a_cluster_whose_workers_would_import_other_packages_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = write_modules(tmp_path, "engine/__init__.py") / "engine" / "__init__.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(spectra_serve, "IS_PRELOADED", False)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    with pytest.raises(ConfigError, match=f"{found} would be imported .* that `spectra env` prints"):
        build_app({"model": "demo"})
    assert not imported_modules(tmp_path)


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({}, {}),
        ({PRELOADED: "mine"}, {PRELOADED: "mine,spectra_serve"}),
        ({PRELOADED: "spectra_serve"}, {}),
        ({"http_proxy": ""}, {}),
        ({"HTTPS_PROXY": PROXY}, without_proxy(LOOPBACK)),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "a, localhost"}, without_proxy("a,localhost,127.0.0.1,::1")),
        ({"grpc_proxy": PROXY, "no_proxy": "*"}, without_proxy("*")),
        ({"http_proxy": PROXY, "no_grpc_proxy": "a"}, without_proxy(LOOPBACK, f"a,{GRPC}")),
        ({"TMPDIR": f"/{'x' * 94}"}, {"TMPDIR": "/tmp"}),
        ({"TMPDIR": "/var/tmp"}, {}),
        ({"TRANSFORMERS_VERBOSITY": "info"}, {}),
    ],
)
def test_only_variables_that_would_break_a_server_change(given: dict[str, str], changed: dict[str, str]) -> None:
    environment = dict(given)
    prepare_environment(environment)
    assert environment == {PRELOADED: "spectra_serve", "TRANSFORMERS_VERBOSITY": "error"} | given | changed


@pytest.mark.cluster
def test_transformers_adds_no_line_to_our_sentence_and_doctor_names_an_unused_tmpdir(tmp_path: Path) -> None:
    folder = shutil.copytree(saved_family("llama"), tmp_path / "model")
    write_json(folder / "config.json", "rope_parameters", {"rope_type": "spiral", "rope_theta": 1e4})
    temporary = tmp_path / ("t" * 94)
    temporary.mkdir()
    doctor = [spectra(), "doctor", "--model", folder, "--port", "0"]
    done = subprocess.run(
        doctor, env=os.environ | {"TMPDIR": str(temporary)}, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert "rope_type 'spiral' is not known" in done.stdout
    assert f"TMPDIR {temporary} is not used: it is longer than 32 bytes" in done.stdout


class Proxy(HTTPServer):
    """A proxy that answers each request itself, and lists them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ProxyAnswer)
        self.requested: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class ProxyAnswer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Proxy)
        self.server.requested.append(self.path)
        self.send_response(204)
        self.end_headers()

    do_CONNECT = do_POST = do_PUT = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_calls_to_loopback_bypass_the_proxy_that_others_take(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", environment := dict(os.environ))
    environment["http_proxy"] = proxy.url
    prepare_environment(environment)
    for host in ("127.0.0.1", "localhost", "hub.example"):
        httpx.get(f"http://{host}:{proxy.server_port}/{host}")
    assert proxy.requested == ["/127.0.0.1", "/localhost", f"http://hub.example:{proxy.server_port}/hub.example"]


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["http_proxy", "ALL_PROXY"])
def test_the_suggested_command_bypasses_the_proxy_of_the_shell_that_runs_it(
    name: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{proxy.server_port}/v1"
    for variable in CURL_PROXIES:
        monkeypatch.delenv(variable, raising=False)
    assert command(url, "demo", "Hi", {}).startswith("  curl -s ")
    monkeypatch.setenv(name, PROXY)
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    send = command(url, "demo", "Hi", {}).partition(" |\n")[0]
    assert subprocess.run(["bash", "-c", send], capture_output=True).returncode == 0
    assert proxy.requested == ["/v1/chat/completions"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_grpc_calls_bypass_the_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", PROXY)
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy", "TMPDIR", "TRANSFORMERS_VERBOSITY", PRELOADED):
        monkeypatch.setenv(name, "")  # restored afterwards
    prepare_environment(os.environ)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port(f"{host}:0")
    server.start()
    with closing(grpc.insecure_channel(f"{host}:{port}")) as channel:
        grpc.channel_ready_future(channel).result(timeout=LIMIT_S)
    server.stop(None).wait()


@pytest.mark.cluster
def test_a_server_starts_in_a_foreign_folder_behind_a_proxy_with_a_long_temporary_folder(
    tiny_checkpoint: Path, tmp_path: Path, short_folder: Path, proxy: Proxy
) -> None:
    project = write_modules(tmp_path / "p", "app/__init__.py", "engine/request.py", "redis.py", "random.py")
    on_path = write_modules(tmp_path / "q", "deployments/__init__.py", "engine/__init__.py")
    temporary = short_folder / ("t" * (94 - len(str(short_folder))))
    temporary.mkdir()
    variables = {"TMPDIR": str(temporary), "PYTHONPATH": str(on_path)}
    variables |= dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), proxy.url)
    server = SpectraServer(tiny_checkpoint, project, FLAGS, program=Path(spectra()), environment=variables)
    try:
        assert server.first_line.startswith("Ready: "), server.log.read_text()
        assert len(server.token_ids(max_tokens=8, ignore_eos=True)) == 8
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(LIMIT_S) == 0
    finally:
        server.close()
    clouds = ("http://169.254.169.254/", "http://metadata.google.internal/")  # which Ray looks for
    assert [url for url in proxy.requested if not url.startswith(clouds)] == []
    assert not imported_modules(tmp_path)
