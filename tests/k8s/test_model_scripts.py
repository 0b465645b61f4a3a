"""The scripts that fetch a model to a volume and copy it to a node's disk: whole, verified, once."""

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
from tests.support.waiting import LIMIT_S

FETCH = FOLDER / "components" / "model-cache-pvc" / "fetch_model.py"
COPY = FOLDER / "components" / "model-cache-nvme" / "copy_model.sh"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "a-model"
FILES = {"config.json": b"{}", "model.safetensors": b"w" * 100_000, "notes.pdf": b"not requested"}
TO_COPY = {"config.json": b"{}", "model-00001-of-00002.safetensors": b"x" * 70_000, "extra/with space.txt": b"y"}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Hub(BaseHTTPRequestHandler):
    """The part of the hub that the library asks: a model's list of files, and each file."""

    weights = b""  # what it sends as model.safetensors

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        listed: list[dict[str, Any]] = [
            {"rfilename": name, "path": name, "type": "file", "oid": "0", "size": len(text)}
            for name, text in FILES.items()
        ]
        digest, size = sha256(FILES["model.safetensors"]), len(FILES["model.safetensors"])
        listed[1]["lfs"] = {"sha256": digest, "oid": digest, "size": size, "pointerSize": 130}
        name = path.rsplit("/", 1)[1]
        answers = {
            f"/api/models/owner/{NAME}/tree/{COMMIT}": json.dumps(listed).encode(),
            f"/api/models/owner/{NAME}/revision/{COMMIT}": json.dumps(
                {"id": f"owner/{NAME}", "sha": COMMIT, "siblings": listed}
            ).encode(),
            f"/owner/{NAME}/resolve/{COMMIT}/{name}": self.weights if name == "model.safetensors" else FILES.get(name),
        }
        content = answers[path] or b""
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{sha256(FILES.get(name, b""))}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def fetch(url: str, into: Path, revision: str = COMMIT) -> subprocess.CompletedProcess[str]:
    into.mkdir(exist_ok=True)
    given = {"MODEL": f"owner/{NAME}", "REVISION": revision, "NAME": NAME, "HF_ENDPOINT": url}
    environment = {"PATH": os.environ["PATH"], "HOME": str(into.parent), "HF_HUB_DISABLE_XET": "1", **given}
    return subprocess.run([sys.executable, FETCH, "--into", into], env=environment, capture_output=True, text=True)


@pytest.mark.cluster
def test_damaged_weights_are_fetched_again_and_a_verified_model_once(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "volume" / NAME
    monkeypatch.setattr(Hub, "weights", b"v" * len(FILES["model.safetensors"]))
    done = fetch(hub, model.parent)
    assert done.returncode == 1
    assert "model.safetensors has sha256" in done.stderr
    assert not model.exists()
    monkeypatch.setattr(Hub, "weights", FILES["model.safetensors"])
    assert fetch(hub, model.parent).returncode == 0
    names = ("config.json", "model.safetensors")
    assert {path.name for path in model.iterdir()} == {*names, "SHA256SUMS"}
    sums = [f"{sha256(FILES[name])}  {name}" for name in names]
    assert (model / "SHA256SUMS").read_text().splitlines() == [f"# owner/{NAME} {COMMIT}", *sums]
    again = fetch("http://127.0.0.1:9", model.parent)
    assert (again.returncode, again.stdout) == (0, f"{model} has owner/{NAME} at {COMMIT}\n")
    for revision, says in (("main", "it must be a commit"), ("f" * 40, "choose another NAME")):
        refused = fetch(hub, model.parent, revision)
        assert refused.returncode == 1
        assert says in refused.stderr


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume with a model, as the Job that fetches leaves it."""
    model = tmp_path / "volume" / NAME
    for name, content in TO_COPY.items():
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_bytes(content)
    sums = "".join(f"{sha256(content)}  {name}\n" for name, content in TO_COPY.items())
    (model / "SHA256SUMS").write_text(f"# owner/{NAME} {COMMIT}\n{sums}")
    (tmp_path / "disk").mkdir()
    return tmp_path / "volume"


def copy(volume: Path) -> subprocess.Popen[str]:
    environment = {"PATH": os.environ["PATH"], "NAME": NAME}
    command = ["bash", COPY, volume, volume.parent / "disk"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode, output


@pytest.mark.cluster
def test_pods_copy_a_model_once_and_only_with_the_right_sums(volume: Path) -> None:
    model, config = volume.parent / "disk" / NAME, volume / NAME / "config.json"
    partial = model.with_name(f".{NAME}.partial")
    partial.mkdir()
    config.write_text("[]")
    status, output = end(copy(volume))
    assert status != 0
    assert "config.json: FAILED" in output
    assert not model.exists()
    config.write_bytes(TO_COPY["config.json"])
    assert [end(process)[0] for process in [copy(volume) for _ in range(3)]] == [0] * 3
    assert {name: (model / name).read_bytes() for name in TO_COPY} == TO_COPY
    assert not partial.exists()
    inode = (model / "config.json").stat().st_ino
    (volume / NAME / "SHA256SUMS").unlink()  # a copied model needs the volume no more
    assert end(copy(volume))[0] == 0
    assert (model / "config.json").stat().st_ino == inode
