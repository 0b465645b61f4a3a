"""Edges with an answer keeper, all in the test's event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from app.access.caller import AccessOptions
from app.access.keyring import Keyring
from app.api.application import create_app
from app.api.http import Api
from app.api.service import ServiceSettings
from tests.app.conftest import ScriptedBackend, client_of
from tests.support.answer_keeping import Keeping, keeping


@dataclass
class KeptEdge:
    """A client of the edge, with the answer keeper and the backend that the edge uses."""

    client: httpx.AsyncClient
    kept: Keeping
    backend: ScriptedBackend

    async def stream(self, path: str, body: dict[str, Any], **headers: str) -> list[str]:
        """The events of a stream that is begun; ``[DONE]`` is one."""
        response = await self.client.post(path, json=body | {"stream": True}, headers=headers)
        assert response.status_code == 200, response.text
        return events_of(response)

    async def resume(self, path: str, **headers: str) -> list[str]:
        """The events of a stream that is read on."""
        response = await self.client.get(path, headers=headers)
        assert response.status_code == 200, response.text
        return events_of(response)


@asynccontextmanager
async def kept_edge(
    backend: ScriptedBackend, keyring: Keyring | None = None, **limits: float
) -> AsyncIterator[KeptEdge]:
    """``async with kept_edge(backend) as edge``."""
    async with keeping(backend._steps, **limits) as kept:
        settings = ServiceSettings(default_max_tokens=200)
        api = Api(backend, backend.tokenizer, settings, keeper=kept.client)
        access = AccessOptions(trust_clients=keyring is None)
        async with client_of(create_app(api, access, keyring)) as client:
            yield KeptEdge(client, kept, backend)


def events_of(response: httpx.Response) -> list[str]:
    """The events of a response, without comments."""
    return [event for event in response.text.split("\n\n") if event and not event.startswith(":")]


def data_of(event: str) -> Any:
    """The JSON of an event, without the figures of speculation, which may differ."""
    data = next(line[6:] for line in event.split("\n") if line.startswith("data: "))
    if data == "[DONE]":
        return data
    fields = msgspec.json.decode(data)
    fields.pop("metrics", None)
    return fields


def id_of(event: str) -> str | None:
    """The id of an event; None: it has none."""
    return next((line[4:] for line in event.split("\n") if line.startswith("id: ")), None)
