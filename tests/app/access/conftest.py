"""Keys in a file, and clients of an edge that asks for them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.key_file import digest_of, new_key
from app.access.keyring import Keyring
from app.access.options import AccessOptions
from app.api.application import create_app
from app.api.http import Api
from app.api.service import Settings


class Keys:
    """A file of keys and a keyring that reads it when it is told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, str] = {}  # id -> key

    def add(self, name: str, **fields: Any) -> dict[str, str]:
        """The headers of a new key."""
        self.keys[name] = new_key()
        digest = digest_of(self.keys[name])
        self.records[name] = {"id": name, "sha256": digest, "tenant": f"tenant-{name}", **fields}
        self.write()
        return self.headers(name)

    def headers(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[name]}"}

    def write(self) -> None:
        self.path.write_text("".join(json.dumps(record) + "\n" for record in self.records.values()))


Serve = Callable[..., Any]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys.jsonl")


@pytest.fixture
def edge(backend: Any, tokenizer: Any, keys: Keys) -> Serve:
    """``async with edge(trust_clients=True) as client``; by default the edge asks for ``keys``."""

    @asynccontextmanager
    async def serve(keyring: Keyring | None = None, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        if not options.keys() & {"tenant_header", "trust_clients"}:
            keyring = keyring or Keyring(keys.path, clock=lambda: 0.0)  # the time stands: nothing comes back
            options["api_keys"] = str(keys.path)
        settings = Settings(default_max_tokens=100, shared_namespace="default", default_nodes=64)
        app = create_app(Api(backend, tokenizer, settings), AccessOptions(**options), keyring)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://edge") as client:
            yield client

    return serve


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of an answer in OpenAI's form."""
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error
