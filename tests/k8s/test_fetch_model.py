"""The script that brings a model of the hub to a volume, against a hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.manifests import FOLDER

SCRIPT = FOLDER / "components" / "model-cache-pvc" / "fetch_model.py"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b"{}", "model.safetensors": b"w" * 100_000, "notes.pdf": b"not asked for"}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as the library asks: a model's files, and each of them."""

    weights = FILES["model.safetensors"]  # what it sends; it says another hash where they are damaged

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def answer(self, *, body: bool) -> None:
        path = self.path.split("?")[0]
        weights = FILES["model.safetensors"]
        large = {"sha256": sha256(weights), "oid": sha256(weights), "size": len(weights), "pointerSize": 130}
        if path == f"/api/models/owner/a-model/tree/{COMMIT}":
            tree: list[dict[str, Any]] = [
                {"type": "file", "path": name, "size": len(text), "oid": "0"} for name, text in FILES.items()
            ]
            tree[1]["lfs"] = large
            self.send(json.dumps(tree).encode(), body, {})
        elif path == f"/api/models/owner/a-model/revision/{COMMIT}":
            siblings: list[dict[str, Any]] = [{"rfilename": name, "size": len(text)} for name, text in FILES.items()]
            siblings[1]["lfs"] = large
            self.send(json.dumps({"id": "owner/a-model", "sha": COMMIT, "siblings": siblings}).encode(), body, {})
        elif path.startswith(f"/owner/a-model/resolve/{COMMIT}/"):
            name = path.rsplit("/", 1)[1]
            content = self.weights if name == "model.safetensors" else FILES[name]
            self.send(content, body, {"ETag": f'"{sha256(FILES[name])}"', "X-Repo-Commit": COMMIT})
        else:
            self.send_error(404)

    def send(self, content: bytes, body: bool, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[type[Hub]]:
    handler = type("OneHub", (Hub,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler
    server.shutdown()
    server.server_close()


def fetch(hub: Any, into: Path, revision: str = COMMIT) -> subprocess.CompletedProcess[str]:
    given = {"MODEL": "owner/a-model", "REVISION": revision, "NAME": "a-model-01", "HF_ENDPOINT": hub.url}
    environment = {"PATH": os.environ["PATH"], "HOME": str(into.parent), "HF_HUB_DISABLE_XET": "1", **given}
    command = [sys.executable, SCRIPT, "--into", into]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volume"
    folder.mkdir()
    return folder


def test_a_model_is_there_whole_with_its_sums_and_is_fetched_once(hub: Any, volume: Path) -> None:
    done = fetch(hub, volume)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in volume.iterdir()] == ["a-model-01"]
    model = volume / "a-model-01"
    names = {path.name for path in model.iterdir()}
    assert names == {"config.json", "model.safetensors", "SHA256SUMS"}
    checked = subprocess.run(
        ["sha256sum", "--strict", "--check", "SHA256SUMS"], cwd=model, capture_output=True, text=True
    )
    assert checked.returncode == 0
    assert checked.stdout.count("OK") == 2
    again = fetch(type("Silent", (), {"url": "http://127.0.0.1:9"}), volume)
    assert (again.returncode, again.stdout) == (0, f"{model} has owner/a-model at {COMMIT}\n")


def test_another_revision_never_replaces_what_pods_read(hub: Any, volume: Path) -> None:
    assert fetch(hub, volume).returncode == 0
    other = fetch(hub, volume, revision="f" * 40)
    assert other.returncode == 1
    assert "choose another NAME" in other.stderr
    assert (volume / "a-model-01" / "config.json").exists()


def test_a_branch_is_refused(hub: Any, volume: Path) -> None:
    done = fetch(hub, volume, revision="main")
    assert done.returncode == 1
    assert "REVISION is 'main'; it must be a commit" in done.stderr


def test_damaged_weights_get_no_name_and_the_next_try_fetches_them_anew(hub: Any, volume: Path) -> None:
    hub.weights = b"v" * len(FILES["model.safetensors"])
    done = fetch(hub, volume)
    assert done.returncode == 1
    assert "model.safetensors has sha256" in done.stderr
    assert not (volume / "a-model-01").exists()
    hub.weights = FILES["model.safetensors"]
    assert fetch(hub, volume).returncode == 0
    assert (volume / "a-model-01" / "model.safetensors").read_bytes() == hub.weights
