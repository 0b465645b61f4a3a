"""/v1/models lists the methods that the server admits from the caller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from app.access.caller import AccessOptions
from app.access.key_file import digest_of, new_key
from app.access.keyring import Keyring
from app.api.application import create_app
from app.api.http import Api
from app.api.service import ServiceSettings
from deployments.options import RouterOptions
from deployments.router.admission import fill_defaults, offered_methods
from engine.errors import UnknownMethodError
from engine.request import Request
from engine.sampling.params import SamplingParams
from tests.support.methods import AVAILABLE

HERE = ("auto", "autoregressive", "pld", "suffix", "token-recycling")


@pytest.mark.parametrize(
    ("default", "listed"),
    [
        ("auto", ()),
        ("auto", ("suffix+token-recycling", "pld")),
        ("suffix+pld", ("pld",)),
        ("suffix+pld", ("rest", "pld+rest")),
    ],
)
def test_a_server_offers_the_methods_that_it_admits(default: str, listed: tuple[str, ...]) -> None:
    options = RouterOptions(model="m", method=default, methods=listed)

    def is_admitted(method: str) -> bool:
        try:
            fill_defaults(Request([1], SamplingParams(), method=method), options)
        except UnknownMethodError:
            return False
        return all(name in HERE for name in method.split("+"))

    known = dict.fromkeys((*AVAILABLE, *listed, default))
    assert set(offered_methods(options, HERE)) == {method for method in known if is_admitted(method)}


async def test_a_key_is_offered_its_own_methods_and_limits(backend: Any, tmp_path: Path) -> None:
    backend.model_card = msgspec.structs.replace(
        backend.model_card, methods=("pld", "suffix", "pld+suffix"), max_nodes=64, limit_nodes=256
    )
    rights = {"all": {}, "some": {"methods": ["pld"], "max_nodes": 8}, "boss": {"admin": True}}
    keys = {name: new_key() for name in rights}
    records = [{"id": n, "sha256": digest_of(keys[n]), "tenant": n, **fields} for n, fields in rights.items()]
    file = tmp_path / "keys.jsonl"
    file.write_text("\n".join(map(json.dumps, records)))
    app = create_app(
        Api(backend, backend.tokenizer, ServiceSettings()), AccessOptions(api_keys=str(file)), Keyring(file)
    )
    offered = {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://edge") as client:
        for name, key in keys.items():
            answer = await client.get("/v1/models/tiny", headers={"Authorization": f"Bearer {key}"})
            offered[name] = answer.json()["speculative"]
    whole = {"method": "pld", "methods": ["pld", "suffix", "pld+suffix"], "max_nodes": 64, "limit_nodes": 256}
    assert offered["all"] == whole | {"trace": False}
    assert offered["some"] == whole | {"methods": ["pld"], "max_nodes": 8, "limit_nodes": 8, "trace": False}
    assert offered["boss"] == whole | {"trace": True}
