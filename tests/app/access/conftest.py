"""A key file, and clients of an edge that requires its keys."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.caller import AccessOptions
from app.access.key_file import digest_of, new_key
from app.access.keyring import Keyring
from app.api.application import create_app
from app.api.http import Api
from app.api.service import ServiceSettings
from tests.app.conftest import client_of


class Keys:
    """A key file; a keyring reads it on ``refresh``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, str] = {}  # by id

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
    """``async with edge(trust_clients=True) as client``; by default the edge requires a key of ``keys``."""

    @asynccontextmanager
    async def serve(keyring: Keyring | None = None, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        if not options.keys() & {"tenant_header", "trust_clients"}:
            keyring = keyring or Keyring(keys.path, clock=lambda: 0.0)  # rates are never refilled
            options["api_keys"] = str(keys.path)
        settings = ServiceSettings(default_max_tokens=100, shared_namespace="default")
        async with client_of(
            create_app(Api(backend, tokenizer, settings), AccessOptions(**options), keyring)
        ) as client:
            yield client

    return serve
