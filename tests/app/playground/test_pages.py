"""The playground's endpoints: files with validators and a policy, settings, and who may kill a process."""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.access.caller import AccessOptions
from app.access.keyring import Keyring
from app.api.application import create_app
from app.api.http import Api
from app.api.service import ServiceSettings
from app.cli import parser
from app.commands.serve import config_from
from app.composition.operation import playground_options
from app.config.serve import ServeConfig
from app.playground.examples import GENERIC, OF_DEFAULT_MODEL
from app.playground.options import PlaygroundOptions, Victim
from app.playground.playground import STATIC, Playground
from engine.protocol import Decision
from speculators.auto import lane
from speculators.auto import speculator as auto

HERE = "http://127.0.0.1:8000"
SINGLE = ("ingress", "keeper", "router")
VICTIMS = (Victim("router"), Victim("stage", 0), Victim("stage", 1))
LINKED = re.compile(r'(?:href|src)="(/[^"]*)"')
IMPORTED = re.compile(r'from "(\.[./\w]+\.js)"')


class KillRecorder:
    """Records what it should kill; stage 1 is not running."""

    def __init__(self) -> None:
        self.killed: list[tuple[str, int]] = []

    async def kill(self, part: str, place: int) -> int | None:
        self.killed.append((part, place))
        return None if place else 4711


@asynccontextmanager
async def edge(
    backend: Any,
    playground: Playground | None,
    access: AccessOptions | None = None,
    keyring: Keyring | None = None,
    peer: str = "127.0.0.1",
    base: str = HERE,
) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(Api(backend, backend.tokenizer, ServiceSettings()), access, keyring, playground)
    transport = httpx.ASGITransport(app=app, client=(peer, 5))
    async with httpx.AsyncClient(transport=transport, base_url=base) as client:
        yield client


def playground_of_default_model(recorder: KillRecorder | None = None) -> Playground:
    return Playground(PlaygroundOptions(True, victims=VICTIMS), (recorder or KillRecorder()).kill)


async def test_every_file_that_a_page_names_is_served_with_a_policy_and_a_validator(backend: Any) -> None:
    named = set()
    for script in STATIC.glob("js/*/*.js"):
        for name in IMPORTED.findall(script.read_text()):
            named.add("/playground/" + posixpath.normpath(f"js/{script.parent.name}/{name}"))
    async with edge(backend, playground_of_default_model()) as client:
        for page in ("/", "/operator"):
            text = (await client.get(page)).text
            assert re.findall(r"<script(?![^>]*src=)|\son\w+=|style=", text) == []  # the policy forbids inline code
            named |= set(LINKED.findall(text))
        assert len(named) > 25
        for path in named:
            answer = await client.get(path)
            assert answer.status_code == 200, path
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-security-policy"].startswith("default-src 'self';")
            assert not path.endswith(".js") or answer.headers["content-type"].startswith("text/javascript")
            again = await client.get(path, headers={"If-None-Match": f'"other", W/{answer.headers["etag"]}'})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == answer.headers["etag"]


def test_no_script_inserts_text_as_html_or_names_another_server() -> None:
    for file in STATIC.rglob("*.*"):
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://", text), file


def test_the_playground_explains_every_decision_of_auto() -> None:
    held_by = [*vars(auto).values(), *vars(lane).values()]
    values = [value for held in held_by for value in (held if type(held) is tuple else (held,))]
    decisions = {f"{value.tier}:{value.reason}" for value in values if isinstance(value, Decision)}
    assert "off:unlikely" in decisions
    explained = re.findall(r'^  "(\w+:\w+)": \[', (STATIC / "js/views/decisions.js").read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(decisions)


async def test_other_paths_and_an_edge_without_a_playground_answer_404(backend: Any) -> None:
    async with edge(backend, playground_of_default_model()) as client:
        for path in ("/playground/", "/playground/guard.py", "/playground/../guard.py", "/playground/js", "/play"):
            answer = await client.get(path)
            assert answer.status_code == 404, path
            assert answer.json()["error"]["code"] == "not_found"
    async with edge(backend, None) as client:
        for path in ("/", "/operator", "/playground/settings", "/playground/js/pages/main.js"):
            assert (await client.get(path)).status_code == 404


async def test_pages_need_no_key_and_the_api_does(backend: Any, tmp_path: Any) -> None:
    file = tmp_path / "keys.jsonl"
    file.write_text("")
    access = AccessOptions(api_keys=str(file))
    async with edge(backend, Playground(PlaygroundOptions()), access, Keyring(file)) as client:
        for path in ("/", "/operator", "/playground/settings", "/playground/js/pages/main.js"):
            assert (await client.get(path)).status_code == 200
        for path in ("/v1/models", "/metrics", "/playground/nothing", "/playground/kill/router"):
            assert (await client.get(path)).status_code == 401


async def test_a_page_of_this_server_kills_the_process_it_names(backend: Any) -> None:
    recorder = KillRecorder()
    async with edge(backend, playground_of_default_model(recorder)) as client:
        settings = (await client.get("/playground/settings")).json()
        assert settings["victims"] == ["router", "stage-0", "stage-1"]
        own = {"Origin": HERE, "X-Playground-Token": settings["token"]}
        answer = await client.post("/playground/kill/router", headers=own)
        assert (answer.status_code, answer.json()) == (200, {"pid": 4711})
        gone = await client.post("/playground/kill/stage-1", headers=own)
        assert (gone.status_code, gone.json()["error"]["message"]) == (
            503,
            "POST /playground/kill/stage-1: stage-1 is not running at the moment",
        )
        for name in ("stage-2", "ingress", "router/x", "1"):
            assert (await client.post(f"/playground/kill/{name}", headers=own)).status_code == 404
    assert recorder.killed == [("router", 0), ("stage", 1)]


@pytest.mark.parametrize(
    ("changed", "peer", "base"),
    [
        ({"X-Playground-Token": "guessed"}, "127.0.0.1", HERE),
        ({"X-Playground-Token": None}, "127.0.0.1", HERE),
        ({"Origin": None}, "127.0.0.1", HERE),
        ({"Origin": "http://127.0.0.1:8001"}, "127.0.0.1", HERE),
        ({"Origin": "https://127.0.0.1:8000"}, "127.0.0.1", HERE),
        ({"Origin": "null"}, "127.0.0.1", HERE),
        ({"Sec-Fetch-Site": "cross-site"}, "127.0.0.1", HERE),
        ({"Sec-Fetch-Site": "same-site"}, "127.0.0.1", HERE),
        ({"X-Forwarded-For": "127.0.0.1, 192.0.2.7"}, "127.0.0.1", HERE),
        ({"Forwarded": "for=192.0.2.7"}, "127.0.0.1", HERE),
        ({}, "192.0.2.7", HERE),
        ({"Origin": "http://attacker.example:8000"}, "127.0.0.1", "http://attacker.example:8000"),
        ({"Origin": "http://127.0.0.1.example"}, "127.0.0.1", "http://127.0.0.1.example"),
    ],
)
async def test_no_other_request_kills_or_gets_the_token(
    backend: Any, changed: dict[str, str | None], peer: str, base: str
) -> None:
    recorder = KillRecorder()
    playground = playground_of_default_model(recorder)
    async with edge(backend, playground) as client:
        token = (await client.get("/playground/settings")).json()["token"]
    given = {"Origin": HERE, "X-Playground-Token": token} | changed
    headers = {name: value for name, value in given.items() if value is not None}
    async with edge(backend, playground, peer=peer, base=base) as client:
        answer = await client.post("/playground/kill/router", headers=headers)
        assert answer.status_code == 403
        if not changed.keys() & {"X-Playground-Token", "Origin"} or base != HERE:
            headers.pop("Origin")
            assert (await client.get("/playground/settings", headers=headers)).json()["token"] is None
    assert recorder.killed == []


async def test_an_edge_without_victims_kills_nothing_and_offers_the_examples_of_its_model(backend: Any) -> None:
    for is_default, offered in ((True, OF_DEFAULT_MODEL), (False, GENERIC)):
        async with edge(backend, Playground(PlaygroundOptions(is_default))) as client:
            settings = (await client.get("/playground/settings")).json()
            assert settings == {
                "about_model": is_default,
                "examples": list(offered),
                "keeps_answers": False,
                "victims": [],
                "token": None,
            }
            answer = await client.post("/playground/kill/router", headers={"Origin": HERE})
            assert answer.status_code == 405  # as for the path of any file


@pytest.mark.parametrize(
    ("fields", "is_private", "names"),
    [
        ({"stages": 2, "speculator_actors": 1}, True, [*SINGLE, "stage-0", "stage-1", "speculator-0"]),
        ({"answers_per_tenant": 0}, True, ["ingress", "router", "stage-0"]),
        ({}, False, []),
        ({"api_keys": "keys.jsonl"}, True, []),
        ({"tenant_header": "X-Tenant"}, True, []),
        ({"cors_origins": "*"}, True, []),
        ({"ingress_replicas": 2}, True, []),
        ({"replicas": 2}, True, []),
        ({"model": "other"}, True, []),
    ],
)
def test_only_the_default_model_that_this_machine_alone_reaches_has_victims(
    fields: dict[str, Any], is_private: bool, names: list[str]
) -> None:
    options = playground_options(ServeConfig(**fields), is_private=is_private)
    assert options is not None
    assert [victim.name for victim in options.victims] == names
    assert options.is_default_model is ("model" not in fields)


def test_a_flag_switches_the_playground_off() -> None:
    for given in (["--no-playground"], ["--playground", "false"]):
        config = config_from(parser().parse_args(["serve", *given]))
        assert not config.playground
        assert playground_options(config, is_private=True) is None
    assert config_from(argparse.Namespace()).playground
