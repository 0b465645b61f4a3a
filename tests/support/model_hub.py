"""A hub of models on this machine: the part of Hugging Face's HTTP API by which snapshots are fetched.

Repositories have commits and a branch, main. What every client fetches is counted: a client is named by
``HF_HUB_USER_AGENT_ORIGIN``, which the library puts into its ``User-Agent``.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

INFO = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?")
TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)")
FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
CLIENT = re.compile(r"origin/([\w-]+)")


class ModelHub:
    """The hub; ``publish`` makes a commit, and main points at the latest one."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.commits: dict[tuple[str, str], Path] = {}  # of a repository and a commit
        self.branches: dict[str, str] = {}  # main of a repository
        self.fetched: dict[str, dict[str, int]] = defaultdict(dict)  # bytes by client and COMMIT/FILE
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def publish(self, repository: str, folder: Path) -> str:
        """Make what is in ``folder`` the newest commit of a repository; returns its name."""
        commit = hashlib.sha1(f"{repository} {folder} {len(self.commits)}".encode()).hexdigest()
        self.commits[repository, commit] = folder
        self.branches[repository] = commit
        return commit

    def files_of(self, client: str, commit: str, suffix: str = "") -> set[str]:
        """Names of files of a commit that a client fetched."""
        names = (name.partition("/") for name in self.fetched[client])
        return {name for of, _, name in names if of == commit and name.endswith(suffix)}

    def clear(self) -> None:
        """Forget what was fetched."""
        self.fetched.clear()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def fetch_from(
    monkeypatch: pytest.MonkeyPatch, url: str, cache: Path, client: str = "tests", offline: bool = False
) -> None:
    """From now on this process fetches from a hub, with a cache of its own."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_USER_AGENT_ORIGIN", client)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)


@contextmanager
def model_hub() -> Iterator[ModelHub]:
    """A hub while the context lasts."""
    hub = ModelHub()
    try:
        yield hub
    finally:
        hub.close()


def _handler(hub: ModelHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as the library names it
            """Say nothing."""

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            if found := INFO.fullmatch(path):
                self._info(found[1], found[2] or "main")
            elif found := TREE.fullmatch(path):
                self._tree(found[1], found[2])
            elif found := FILE.fullmatch(path):
                self._file(found[1], found[2], found[3], with_body=with_body)
            else:
                self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})

        def _info(self, repository: str, revision: str) -> None:
            commit = self._commit(repository, revision)
            if commit is None:
                code = "RevisionNotFound" if repository in hub.branches else "RepoNotFound"
                self._send(404, b"{}", {"X-Error-Code": code})
                return
            names = sorted(file.name for file in hub.commits[repository, commit].iterdir())
            self._json({"id": repository, "sha": commit, "siblings": [{"rfilename": name} for name in names]})

        def _tree(self, repository: str, revision: str) -> None:
            folder = hub.commits[repository, self._commit(repository, revision) or ""]
            listed = [(file.name, file.stat().st_size) for file in sorted(folder.iterdir())]
            self._json([{"type": "file", "path": name, "size": size, "oid": "0" * 40} for name, size in listed])

        def _json(self, answer: Any) -> None:
            self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

        def _file(self, repository: str, revision: str, name: str, *, with_body: bool) -> None:
            commit = self._commit(repository, revision)
            file = None if commit is None else hub.commits[repository, commit] / name
            if file is None or not file.is_file():
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            content = file.read_bytes()
            if with_body:
                client = CLIENT.search(self.headers.get("User-Agent", ""))
                fetched = hub.fetched[client[1] if client else ""]
                key = f"{commit}/{name}"
                fetched[key] = fetched.get(key, 0) + len(content)
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            self._send(200, content, {"X-Repo-Commit": commit or "", "ETag": etag}, with_body=with_body)

        def _commit(self, repository: str, revision: str) -> str | None:
            if revision == "main":
                return hub.branches.get(repository)
            return revision if (repository, revision) in hub.commits else None

        def _send(self, status: int, body: bytes, headers: dict[str, str], *, with_body: bool = True) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if with_body and self.command != "HEAD":
                self.wfile.write(body)

    return Handler
