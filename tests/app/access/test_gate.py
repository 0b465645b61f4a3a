"""What a caller may ask for: by key, by a gateway's header, or by neither."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest

from tests.app.access.conftest import Keys, Serve, error_of

TEXT = {"model": "tiny", "prompt": "hello", "max_tokens": 4}
DOOR = "/v1/completions"
NO_KEY: dict[str, str] = {}


async def ask(client: httpx.AsyncClient, headers: dict[str, str], **fields: Any) -> httpx.Response:
    return await client.post(DOOR, json=TEXT | fields, headers=headers)


async def test_every_path_but_those_of_probes_needs_a_key(edge: Serve, keys: Keys) -> None:
    mine = keys.add("a")
    paths = ["/v1/models", "/v1/models/tiny", "/version", "/metrics", "/nowhere", "/health/", "//health", "/"]
    async with edge() as client:
        for path in paths:
            answer = await client.get(path)
            assert answer.status_code == 401, path
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert error_of(answer)["code"] == "missing_api_key"
        for path in (DOOR, "/v1/chat/completions", "/tokenize", "/detokenize"):
            assert (await client.post(path, json={})).status_code == 401, path
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/v1/models", headers=mine)).status_code == 200
        assert (await ask(client, mine)).status_code == 200


@pytest.mark.parametrize(
    "given",
    [
        [("Authorization", "Bearer sk-spectra-unknown")],
        [("Authorization", "Bearer ")],
        [("Authorization", "Basic {key}")],
        [("Authorization", "{key}")],
        [("Authorization", "Bearer {key}x")],
        [("Authorization", "Bearer " + "x" * 5000)],
        [("Authorization", "Bearer {key}"), ("Authorization", "Bearer {key}")],
        [("X-Api-Key", "{key}")],
    ],
)
async def test_anything_but_one_known_key_is_refused(
    edge: Serve, keys: Keys, given: list[tuple[str, str]], backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keys.add("a")
    key = keys.keys["a"]
    caplog.set_level(logging.DEBUG)
    headers = [(name, value.replace("{key}", key)) for name, value in given]
    async with edge() as client:
        answer = await client.post(DOOR, json=TEXT, headers=headers)
    assert answer.status_code == 401
    assert key not in answer.text + caplog.text
    assert not backend.seen


async def test_an_expired_key_is_refused_and_says_so(edge: Serve, keys: Keys) -> None:
    old, new = keys.add("old", expires="2020-01-01T00:00:00Z"), keys.add("new", expires="2999-01-01T00:00:00+02:00")
    async with edge() as client:
        assert "key old has expired" in error_of(await ask(client, old))["message"]
        assert (await ask(client, new)).status_code == 200


NOT_PERMITTED = [
    ({"priority": -1}, "priority"),
    ({"speculative": {"namespace": "tenant-b"}}, "speculative.namespace"),
    ({"speculative": {"method": "suffix"}}, "speculative.method"),
    ({"speculative": {"method": "pld+suffix"}}, "speculative.method"),
    ({"speculative": {"max_nodes": 9}}, "speculative.max_nodes"),
    ({"speculative": {"trace": True}}, "speculative.trace"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param"), NOT_PERMITTED)
async def test_what_a_key_may_not_ask_for_is_refused_by_name(
    edge: Serve, keys: Keys, backend: Any, fields: dict[str, Any], param: str, stream: bool
) -> None:
    mine = keys.add("a", namespaces=["tenant-a"], methods=["pld"], max_nodes=8)
    async with edge() as client:
        answer = await ask(client, mine, stream=stream, **fields)
    assert answer.status_code == 403
    assert (error_of(answer)["param"], error_of(answer)["code"]) == (param, "not_permitted")
    assert "key a may not ask for it" in error_of(answer)["message"]
    assert not backend.seen


async def test_what_a_key_may_ask_for_arrives(edge: Serve, keys: Keys, backend: Any) -> None:
    mine = keys.add("a", namespaces=["own", "team"], feeds=["own"], max_priority=-5, methods=["pld"], max_nodes=8)
    own = {"namespace": "own", "method": "pld", "max_nodes": 8}
    async with edge() as client:
        for fields in ({"speculative": own, "priority": -5}, {"speculative": {"namespace": "team"}, "priority": 7}, {}):
            answer = await ask(client, mine, user="someone else", **fields)
            assert answer.status_code == 200, answer.text
    seen = [(r.tenant, r.namespace, r.teaches, r.priority, r.method, r.max_nodes) for r in backend.seen]
    assert seen == [
        ("tenant-a", "own", True, -5, "pld", 8),
        ("tenant-a", "team", False, 7, "", 8),  # read, not fed; and no more nodes than the key's by default
        ("tenant-a", "", False, 0, "", 8),
    ]
    assert len({request.scope for request in backend.seen}) == 3


async def test_the_shared_namespace_is_read_by_all_and_fed_by_leave(edge: Serve, keys: Keys, backend: Any) -> None:
    one, other = keys.add("one", feeds=["default"]), keys.add("other")
    async with edge() as client:
        for headers in (one, other):
            assert (await ask(client, headers)).status_code == 200
            assert (await ask(client, headers, speculative={"namespace": "default"})).status_code == 200
    assert [(r.namespace, r.teaches) for r in backend.seen] == [("", True), ("", True), ("", False), ("", False)]
    assert len({request.scope for request in backend.seen}) == 2


async def test_metrics_are_for_administrators_or_for_all(edge: Serve, keys: Keys) -> None:
    plain, admin = keys.add("plain"), keys.add("admin", admin=True)
    async with edge() as client:
        assert (await client.get("/metrics", headers=plain)).status_code == 403
        assert (await client.get("/metrics", headers=admin)).status_code == 200
        assert (await ask(client, admin, speculative={"trace": True})).status_code == 200
    async with edge(open_metrics=True) as client:
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401


async def test_a_matrix_of_tenants_and_resources_has_no_crossing(edge: Serve, keys: Keys, backend: Any) -> None:
    names = ("a", "b", "c")
    for name in names:
        keys.add(
            name, namespaces=[f"ns-{name}"], feeds=[f"ns-{name}"], methods=["pld"], max_nodes=4, requests_per_minute=9
        )
    asked: dict[tuple[str, str], set[str]] = {}
    async with edge() as client:
        for name in names:
            for other in names:
                answer = await ask(client, keys.headers(name), user=other, speculative={"namespace": f"ns-{other}"})
                assert answer.status_code == (200 if name == other else 403)
                assert answer.headers["x-ratelimit-remaining-requests"] == str(8 - names.index(other))  # its own quota
            assert (await ask(client, keys.headers(name))).status_code == 200
            assert (await ask(client, keys.headers(name), cache_salt="same")).status_code == 200
            assert (await client.get("/metrics", headers=keys.headers(name))).status_code == 403
    for request in backend.seen:
        assert request.namespace in ("", f"ns-{request.tenant[-1]}")
        asked.setdefault((request.scope, request.namespace), set()).add(request.tenant)
    assert len(asked) == 3 * len(names)
    assert all(len(tenants) == 1 for tenants in asked.values())  # no prefix and no learnt state is shared


NEEDS_TRUST = [
    ({"priority": -3}, "priority"),
    ({"priority": 3}, "priority"),
    ({"speculative": {"namespace": "tenant-a"}}, "speculative.namespace"),
]


@pytest.mark.parametrize(("fields", "param"), NEEDS_TRUST)
async def test_without_keys_clients_are_heard_only_if_they_are_trusted(
    edge: Serve, backend: Any, fields: dict[str, Any], param: str
) -> None:
    async with edge(trust_clients=False) as client:
        answer = await ask(client, NO_KEY, **fields)
        assert (answer.status_code, error_of(answer)["param"]) == (403, param)
        assert "trust_clients is false" in error_of(answer)["message"]
        assert (await ask(client, NO_KEY, user="someone", priority=0)).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
        assert (await ask(client, NO_KEY, speculative={"trace": True})).status_code == 200  # all are one tenant
    assert backend.seen[0].tenant == ""  # takes no turn of its own by saying so
    async with edge(trust_clients=True) as client:
        assert (await ask(client, NO_KEY, user="someone", **fields)).status_code == 200
    assert (backend.seen[2].tenant, backend.seen[2].priority) == ("someone", fields.get("priority", 0))


async def test_a_gateways_header_says_whose_a_request_is(edge: Serve, backend: Any) -> None:
    async with edge(tenant_header="X-Tenant") as client:
        assert (await ask(client, {"X-Tenant": "ann"}, speculative={"namespace": "ann"})).status_code == 200
        assert (await ask(client, {"X-Tenant": "ann"}, user="bob")).status_code == 200
        assert (await ask(client, {"X-Tenant": "bob"})).status_code == 200
        assert (await ask(client, {"X-Tenant": "ann"}, speculative={"namespace": "bob"})).status_code == 403
        assert (await ask(client, {"X-Tenant": "ann"}, priority=-1)).status_code == 403
        refusal = await ask(client, {"X-Tenant": "ann"}, speculative={"trace": True})
        assert (refusal.status_code, error_of(refusal)["param"]) == (403, "speculative.trace")
        assert (await client.get("/metrics", headers={"X-Tenant": "ann"})).status_code == 403
        assert (await client.get("/health")).status_code == 200
    assert [(r.tenant, r.namespace, r.teaches) for r in backend.seen] == [
        ("ann", "ann", True),
        ("ann", "", False),
        ("bob", "", False),
    ]
    assert len({request.scope for request in backend.seen}) == 3


async def test_a_gateways_tenant_feeds_no_text_that_other_tenants_read(edge: Serve, backend: Any) -> None:
    async with edge(tenant_header="X-Tenant", trust_clients=True) as client:
        for speculative in ({}, {"namespace": "default"}, {"namespace": "ann"}):
            assert (await ask(client, {"X-Tenant": "ann"}, speculative=speculative)).status_code == 200
        refusal = await ask(client, {"X-Tenant": "ann"}, speculative={"trace": True})
        assert refusal.status_code == 403
        assert "a gateway's tenant may not ask for it" in error_of(refusal)["message"]
    assert [(r.namespace, r.teaches) for r in backend.seen] == [("", False), ("", False), ("ann", True)]


@pytest.mark.parametrize("values", [[], [""], ["a/b"], ["x" * 129], ["ann", "bob"], ["ann, bob"]])
async def test_a_request_without_one_tenant_in_the_gateways_header_is_refused(edge: Serve, values: list[str]) -> None:
    async with edge(tenant_header="X-Tenant") as client:
        answer = await client.post(DOOR, json=TEXT, headers=[("X-Tenant", value) for value in values])
        assert (answer.status_code, error_of(answer)["code"]) == (401, "invalid_tenant")


async def test_pages_of_other_origins_ask_only_where_they_may(edge: Serve, keys: Keys) -> None:
    mine = keys.add("a", requests_per_minute=60)
    page = {"Origin": "https://chat.example"}
    question = page | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with edge() as client:
        assert "Access-Control-Allow-Origin" not in (await ask(client, mine | page)).headers
        assert (await client.options(DOOR, headers=question)).status_code == 401
    async with edge(cors_origins=("https://chat.example",)) as client:
        preflight = await client.options(DOOR, headers=question)  # browsers send it without a key
        assert preflight.status_code == 200
        assert "authorization" in preflight.headers["Access-Control-Allow-Headers"].lower()
        for headers, status in ((mine, 200), (NO_KEY, 401)):  # a page can read why it was refused
            answer = await ask(client, headers | page)
            assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (status, page["Origin"])
        assert "x-ratelimit-remaining-requests" in answer.headers["Access-Control-Expose-Headers"]
        other = await client.options(DOOR, headers=question | {"Origin": "https://evil.example"})
        assert other.status_code == 400
