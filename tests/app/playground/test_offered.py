"""What /v1/models says that a caller may ask of speculation is what the server takes from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from app.access.key_file import digest_of, new_key
from app.access.keyring import Keyring
from app.access.options import AccessOptions
from app.api.application import create_app
from app.api.http import Api
from app.api.service import Settings
from deployments.options import RouterOptions
from deployments.router.admission import as_served, offered_methods
from engine.errors import UnknownMethodError
from engine.request import Request
from engine.sampling.params import SamplingParams
from speculators.methods import AVAILABLE
from tests.support.server_process import Server

HERE = ("auto", "autoregressive", "pld", "suffix", "token-recycling")


@pytest.mark.cluster
def test_every_offered_method_writes_the_same_text(demo_server: Server) -> None:
    body: dict[str, Any] = {"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 40, "seed": 3}
    [model] = demo_server.http.get("/v1/models").json()["data"]
    offered = model["speculative"]
    assert {"auto", "autoregressive", "suffix", "token-recycling", "prediction"} <= set(offered["methods"])
    assert (offered["method"], offered["trace"]) == ("auto", True)
    texts = set()
    for method in offered["methods"]:
        speculative = {"method": method, "max_nodes": offered["limit_nodes"]}
        answer = demo_server.http.post("/v1/completions", json=body | {"speculative": speculative})
        assert answer.status_code == 200, answer.text
        texts.add(answer.json()["choices"][0]["text"])
    assert len(texts) == 1
    more = {"max_nodes": offered["limit_nodes"] + 1}
    assert demo_server.http.post("/v1/completions", json=body | {"speculative": more}).status_code == 400


@pytest.mark.parametrize("listed", [(), ("pld",), ("suffix+token-recycling", "pld"), ("rest", "pld+rest")])
@pytest.mark.parametrize("default", ["auto", "suffix+pld"])
def test_what_a_server_offers_is_what_it_admits(default: str, listed: tuple[str, ...]) -> None:
    options = RouterOptions(model="m", method=default, methods=listed)
    offered = offered_methods(options, HERE)

    def is_admitted(method: str) -> bool:
        try:
            as_served(Request([1], SamplingParams(), method=method), options)
        except UnknownMethodError:
            return False
        return all(name in HERE for name in method.split("+"))

    asked = dict.fromkeys((*AVAILABLE, *listed, default))
    assert set(offered) == {method for method in asked if is_admitted(method)}


async def test_a_key_is_told_what_it_may_ask(backend: Any, tmp_path: Path) -> None:
    backend.model_card = msgspec.structs.replace(
        backend.model_card, methods=("pld", "suffix", "pld+suffix"), max_nodes=64, limit_nodes=256
    )
    keys = {"all": {}, "some": {"methods": ["pld"], "max_nodes": 8}, "boss": {"admin": True}}
    given = {name: new_key() for name in keys}
    records = [{"id": n, "sha256": digest_of(given[n]), "tenant": n, **fields} for n, fields in keys.items()]
    file = tmp_path / "keys.jsonl"
    file.write_text("\n".join(map(json.dumps, records)))
    app = create_app(Api(backend, backend.tokenizer, Settings()), AccessOptions(api_keys=str(file)), Keyring(file))
    told = {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://edge") as client:
        for name, key in given.items():
            answer = await client.get("/v1/models/tiny", headers={"Authorization": f"Bearer {key}"})
            told[name] = answer.json()["speculative"]
    whole = {"method": "pld", "methods": ["pld", "suffix", "pld+suffix"], "max_nodes": 64, "limit_nodes": 256}
    assert told["all"] == whole | {"trace": False}
    assert told["some"] == whole | {"methods": ["pld"], "max_nodes": 8, "limit_nodes": 8, "trace": False}
    assert told["boss"] == whole | {"trace": True}
