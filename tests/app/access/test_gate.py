"""What a caller may request: with a key, with a gateway's tenant header, or with neither."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest

from tests.app.access.conftest import Keys, Serve
from tests.app.conftest import error_of

TEXT = {"model": "tiny", "prompt": "hello", "max_tokens": 4}
PATH = "/v1/completions"
NO_KEY: dict[str, str] = {}


async def ask(client: httpx.AsyncClient, headers: dict[str, str], **fields: Any) -> httpx.Response:
    return await client.post(PATH, json=TEXT | fields, headers=headers)


async def test_every_path_but_health_needs_a_key(edge: Serve, keys: Keys) -> None:
    mine = keys.add("a")
    async with edge() as client:
        for path in ["/v1/models", "/v1/models/tiny", "/version", "/metrics", "/nowhere", "/health/", "//health", "/"]:
            answer = await client.get(path)
            assert error_of(answer, 401)["code"] == "missing_api_key"
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        for path in (PATH, "/v1/chat/completions", "/tokenize", "/detokenize"):
            error_of(await client.post(path, json={}), 401)
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/v1/models", headers=mine)).status_code == 200
        assert (await ask(client, mine)).status_code == 200


@pytest.mark.parametrize(
    "given",
    [
        [("Authorization", "Bearer sk-spectra-unknown")],
        [("Authorization", "Bearer ")],
        [("Authorization", "Basic {key}")],
        [("Authorization", "Bearer {key}x")],
        [("Authorization", "Bearer " + "x" * 5000)],
        [("Authorization", "Bearer {key}"), ("Authorization", "Bearer {key}")],
        [("X-Api-Key", "{key}")],
    ],
)
async def test_any_header_but_one_known_key_is_refused_without_showing_it(
    edge: Serve, keys: Keys, given: list[tuple[str, str]], backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keys.add("a")
    key, expired = keys.keys["a"], keys.add("old", expires="2020-01-01T00:00:00Z")
    caplog.set_level(logging.DEBUG)
    async with edge() as client:
        assert "key old has expired" in error_of(await ask(client, expired), 401)["message"]
        headers = [(name, value.replace("{key}", key)) for name, value in given]
        answer = await client.post(PATH, json=TEXT, headers=headers)
    assert answer.status_code == 401
    assert key not in answer.text + caplog.text
    assert not backend.seen


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"priority": -1}, "priority"),
        ({"priority": -1, "stream": True}, "priority"),
        ({"speculative": {"namespace": "tenant-b"}}, "speculative.namespace"),
        ({"speculative": {"method": "pld+suffix"}, "stream": True}, "speculative.method"),
        ({"speculative": {"max_nodes": 9}}, "speculative.max_nodes"),
        ({"speculative": {"trace": True}}, "speculative.trace"),
    ],
)
async def test_a_field_beyond_the_rights_of_a_key_is_refused_by_name(
    edge: Serve, keys: Keys, backend: Any, fields: dict[str, Any], param: str
) -> None:
    mine = keys.add("a", namespaces=["tenant-a"], methods=["pld"], max_nodes=8)
    async with edge() as client:
        error = error_of(await ask(client, mine, **fields), 403)
    assert (error["param"], error["code"]) == (param, "not_permitted")
    assert "key a may not ask for it" in error["message"]
    assert not backend.seen


async def test_fields_within_the_rights_of_a_key_reach_the_backend(edge: Serve, keys: Keys, backend: Any) -> None:
    mine = keys.add("a", namespaces=["own", "team"], feeds=["own"], max_priority=-5, methods=["pld"], max_nodes=3)
    own = {"namespace": "own", "method": "pld", "max_nodes": 3}
    async with edge() as client:
        for fields in ({"speculative": own, "priority": -5}, {"speculative": {"namespace": "team"}, "priority": 7}, {}):
            answer = await ask(client, mine, user="someone else", **fields)
            assert answer.status_code == 200, answer.text
    seen = [(r.tenant, r.namespace, r.teaches, r.priority, r.method, r.max_nodes) for r in backend.seen]
    assert seen == [
        ("tenant-a", "own", True, -5, "pld", 3),
        (
            "tenant-a",
            "team",
            False,
            7,
            "",
            3,
        ),  # may read it, may not feed it; the key's nodes are fewer
        ("tenant-a", "", False, 0, "", 3),
    ]
    assert len({request.scope for request in backend.seen}) == 3


async def test_only_permitted_keys_feed_the_shared_namespace(edge: Serve, keys: Keys, backend: Any) -> None:
    one, other = keys.add("one", feeds=["default"]), keys.add("other")
    async with edge() as client:
        for headers in (one, other):
            assert (await ask(client, headers)).status_code == 200
            assert (await ask(client, headers, speculative={"namespace": "default"})).status_code == 200
    assert [(r.namespace, r.teaches) for r in backend.seen] == [("", True), ("", True), ("", False), ("", False)]
    assert len({request.scope for request in backend.seen}) == 2


async def test_metrics_and_traces_need_an_admin_key_unless_metrics_are_open(edge: Serve, keys: Keys) -> None:
    plain, admin = keys.add("plain"), keys.add("admin", admin=True)
    async with edge() as client:
        assert (await client.get("/metrics", headers=plain)).status_code == 403
        assert (await client.get("/metrics", headers=admin)).status_code == 200
        assert (await ask(client, admin, speculative={"trace": True})).status_code == 200
    async with edge(open_metrics=True) as client:
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401


async def test_tenants_share_no_scope_no_namespace_and_no_quota(edge: Serve, keys: Keys, backend: Any) -> None:
    names = ("a", "b", "c")
    for name in names:
        keys.add(name, namespaces=[f"ns-{name}"], feeds=[f"ns-{name}"], requests_per_minute=9)
    tenants: dict[tuple[str, str], set[str]] = {}
    async with edge() as client:
        for name in names:
            for other in names:
                answer = await ask(client, keys.headers(name), user=other, speculative={"namespace": f"ns-{other}"})
                assert answer.status_code == (200 if name == other else 403)
                assert answer.headers["x-ratelimit-remaining-requests"] == str(8 - names.index(other))
            assert (await ask(client, keys.headers(name))).status_code == 200
            assert (await ask(client, keys.headers(name), cache_salt="same")).status_code == 200
    for request in backend.seen:
        assert request.namespace in ("", f"ns-{request.tenant[-1]}")
        tenants.setdefault((request.scope, request.namespace), set()).add(request.tenant)
    assert len(tenants) == 3 * len(names)
    assert all(len(those) == 1 for those in tenants.values())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"priority": -3}, "priority"),
        ({"speculative": {"namespace": "tenant-a"}}, "speculative.namespace"),
    ],
)
async def test_without_keys_only_trusted_clients_choose_priority_namespace_and_tenant(
    edge: Serve, backend: Any, fields: dict[str, Any], param: str
) -> None:
    async with edge(trust_clients=False) as client:
        error = error_of(await ask(client, NO_KEY, **fields), 403)
        assert error["param"] == param
        assert "trust_clients is false" in error["message"]
        assert (await client.get("/metrics")).status_code == 200  # all are one tenant
        assert (await ask(client, NO_KEY, user="someone", priority=0, speculative={"trace": True})).status_code == 200
    assert backend.seen[0].tenant == ""
    async with edge(trust_clients=True) as client:
        assert (await ask(client, NO_KEY, user="someone", **fields)).status_code == 200
    assert (backend.seen[1].tenant, backend.seen[1].priority) == ("someone", fields.get("priority", 0))


async def test_a_gateways_header_names_the_tenant_who_feeds_only_its_own_namespace(edge: Serve, backend: Any) -> None:
    ann, bob = {"X-Tenant": "ann"}, {"X-Tenant": "bob"}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"speculative": {"namespace": "bob"}}, "speculative.namespace"),
        ({"priority": -1}, "priority"),
        ({"speculative": {"trace": True}}, "speculative.trace"),
    ]
    async with edge(tenant_header="X-Tenant") as client:
        assert (await ask(client, ann, speculative={"namespace": "ann"})).status_code == 200
        assert (await ask(client, ann, user="bob")).status_code == 200
        assert (await ask(client, bob)).status_code == 200
        for fields, param in refused:
            assert error_of(await ask(client, ann, **fields), 403)["param"] == param
        assert (await client.get("/metrics", headers=ann)).status_code == 403
        assert (await client.get("/health")).status_code == 200
    async with edge(tenant_header="X-Tenant", trust_clients=True) as client:
        assert (await ask(client, bob, speculative={"namespace": "default"})).status_code == 200
        assert (await ask(client, bob, speculative={"namespace": "ann"})).status_code == 200
        message = error_of(await ask(client, ann, speculative={"trace": True}), 403)["message"]
        assert "a gateway's tenant may not ask for it" in message
    seen = [(r.tenant, r.namespace, r.teaches) for r in backend.seen]
    own = [("ann", "ann", True), ("ann", "", False), ("bob", "", False)]
    assert seen == [*own, ("bob", "", False), ("bob", "ann", True)]
    assert len({request.scope for request in backend.seen[:3]}) == 3


@pytest.mark.parametrize("values", [[], [""], ["a/b"], ["x" * 129], ["ann", "bob"], ["ann, bob"]])
async def test_a_request_without_exactly_one_tenant_header_is_refused(edge: Serve, values: list[str]) -> None:
    async with edge(tenant_header="X-Tenant") as client:
        answer = await client.post(PATH, json=TEXT, headers=[("X-Tenant", value) for value in values])
        assert error_of(answer, 401)["code"] == "invalid_tenant"


async def test_only_listed_origins_get_cors_headers(edge: Serve, keys: Keys) -> None:
    mine = keys.add("a", requests_per_minute=60)
    page = {"Origin": "https://chat.example"}
    question = page | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with edge() as client:
        assert (await client.options(PATH, headers=question)).status_code == 401
    async with edge(cors_origins=("https://chat.example",)) as client:
        preflight = await client.options(PATH, headers=question)  # browsers send it without a key
        assert preflight.status_code == 200
        assert "authorization" in preflight.headers["Access-Control-Allow-Headers"].lower()
        for headers, status in ((mine, 200), (NO_KEY, 401)):  # the page can read a refusal
            answer = await ask(client, headers | page)
            assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (status, page["Origin"])
        assert "x-ratelimit-remaining-requests" in answer.headers["Access-Control-Expose-Headers"]
        other = await client.options(PATH, headers=question | {"Origin": "https://evil.example"})
        assert other.status_code == 400
