"""A real server on a real Redis: snapshots are swapped under running requests, tenants are isolated, answers learned.

Greedy text never changes.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.key_file import digest_of, new_key
from engine.model.identity import tokenizer_hash
from engine.model.loader import load_spec
from retrieval_store.service.compaction import TargetVocabulary
from retrieval_store.stores.base import Store
from retrieval_store.stores.open import open_store
from tests.support.redis_server import RedisServer
from tests.support.retrieval_service import SHARED, build
from tests.support.server_process import SpectraServer, running
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.cluster

FLAGS = ["--name", "tiny", "--kv-gib", "0.05", "--method", "rest", "--max-nodes", "16", "--grace", "2"]
ORIGIN = "https://chat.example.com"
ACCESS = ["--methods", "autoregressive,pld", "--cors-origins", ORIGIN]
RETRIEVAL = ["--retrieval-poll", "0.1", "--live", "learner"]
KEYS = {  # id -> what the key may do
    "operator": {"namespaces": ["tenant-a", "tenant-b", "learner"], "feeds": ["learner"], "admin": True},
    "reader": {"namespaces": ["learner"]},
    "limited": {"requests_per_minute": 1},
}
LONG = {"max_tokens": 500, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
SHORT = LONG | {"max_tokens": 60}
MOST, FEW = 40, 20  # accepted of 60: the text itself was found, or others that agree with it by chance


@dataclass
class RetrievalSite:
    """A server, the Redis it watches, and what is published there."""

    server: SpectraServer
    redis: RedisServer
    folder: Path
    keys: dict[str, str]  # id -> key

    def __post_init__(self) -> None:
        self.http = self.server.http
        self.http.headers.update(self.key("operator"))

    def key(self, name: str) -> dict[str, str]:
        """The header of a key."""
        return {"Authorization": f"Bearer {self.keys[name]}"}

    def complete(self, prompt: str, namespace: str | None = None, **fields: Any) -> tuple[list[int], int]:
        """Return token ids, and how many of them were drafted by retrieval."""
        body = {"model": "tiny", "prompt": prompt, **SHORT, **fields}
        if namespace is not None:
            body["speculative"] = {"namespace": namespace}
        answer = self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        figures = answer.json()["metrics"]["speculative_decoding"]
        ids: list[int] = answer.json()["choices"][0]["token_ids"]
        return ids, figures["by_source"].get("rest", {}).get("accepted", 0)

    def knows(self, prompt: str, namespace: str | None = None) -> bool:
        """Whether requests of ``namespace`` find the answer to ``prompt``."""
        return self.complete(prompt, namespace)[1] > MOST

    def ignores(self, prompt: str, namespace: str | None = None) -> bool:
        return self.complete(prompt, namespace)[1] < FEW

    def plain(self, prompt: str, **fields: Any) -> list[int]:
        return self.complete(prompt, speculative={"enabled": False}, **fields)[0]

    def store(self, namespace: str = SHARED) -> Store:
        return open_store(self.redis.url, namespace)

    def publish(self, texts: list[list[int]], namespace: str = SHARED) -> str:
        model = self.server.checkpoint
        target = TargetVocabulary(tokenizer_hash(model), load_spec(model).vocab_size)
        store = self.store(namespace)
        version = store.publish(build(texts, self.folder, target))
        store.activate(version)
        return version

    @property
    def version(self) -> str:
        return str(self.server.health()["retrieval_version"])

    def metric(self, name: str) -> float:
        found = re.search(rf"^{name}{{[^}}]*}} (.*)$", self.http.get("/metrics").text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])


def write_keys(folder: Path, keys: dict[str, str]) -> None:
    records = [{"id": name, "sha256": digest_of(keys[name]), "tenant": name, **KEYS[name]} for name in keys]
    (folder / "new").write_text("\n".join(map(json.dumps, records)))
    (folder / "new").rename(folder / "keys")


@pytest.fixture(scope="module")
def site(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RetrievalSite]:
    folder, keys = tmp_path_factory.mktemp("site"), {name: new_key() for name in KEYS}
    write_keys(folder, keys)
    with RedisServer() as redis:
        store = ["--retrieval", redis.url, "--retrieval-cache", str(folder / "cache")]
        flags = [*FLAGS, *ACCESS, *store, *RETRIEVAL, "--api-keys", str(folder / "keys")]
        with running(tiny_checkpoint, flags) as server:
            yield RetrievalSite(server, redis, folder, keys)


class Background:
    """Repeats a request within a ``with`` block; each answer must be the same."""

    def __init__(self, site: RetrievalSite, prompt: str, expected: list[int], namespace: str | None = None) -> None:
        self._site, self._prompt, self._expected, self._namespace = site, prompt, expected, namespace
        self._over = threading.Event()
        self.done = 0
        self.wrong: list[object] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                ids, _ = self._site.complete(self._prompt, self._namespace, max_tokens=len(self._expected))
                self.wrong += [] if ids == self._expected else [ids]
            except Exception as error:
                self.wrong.append(error)
            self.done += 1

    def __enter__(self) -> Background:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        assert self.wrong == []
        assert self.done > 0


def test_snapshots_are_published_and_rolled_back_under_running_requests(site: RetrievalSite) -> None:
    long, snow, fox = site.plain("Snow falls", **LONG), site.plain("Snow falls on"), site.plain("The quick brown")
    assert site.version == ""
    assert site.complete("Snow falls on") == (snow, 0)
    assert site.plain("The quick brown") == fox
    with Background(site, "Snow falls", long):
        first = site.publish([snow])
        wait_until(lambda: site.version == first)
        ids, accepted = site.complete("Snow falls on")
        assert ids == snow
        assert accepted > MOST
        assert site.ignores("The quick brown", SHARED)
        second = site.publish([fox])
        wait_until(lambda: site.version == second)
        assert site.knows("The quick brown", SHARED)
        assert site.ignores("Snow falls on")
        site.store().rollback()
        wait_until(lambda: site.version == first)
        assert site.complete("Snow falls on") == (ids, accepted)
    assert site.metric("spectra:retrieval_swaps_total") == 3
    assert site.metric("spectra:retrieval_refused_total") == 0
    assert site.metric("spectra:retrieval_snapshot_tokens") == 60


def test_a_tenant_drafts_from_its_own_text_only(site: RetrievalSite) -> None:
    prompt = "Speculation drafts tokens"
    expected = site.plain(prompt)
    site.publish([expected], "tenant-a")
    wait_until(lambda: site.knows(prompt, "tenant-a"))
    for other in ("tenant-b", None, SHARED):
        assert site.ignores(prompt, other)
    assert site.complete(prompt, "tenant-a")[0] == expected


def test_an_answer_is_learned_within_its_namespace_only(site: RetrievalSite) -> None:
    prompt = "while the river keeps"
    expected, accepted = site.complete(prompt, "learner")
    assert accepted < FEW
    wait_until(lambda: site.knows(prompt, "learner"))
    assert site.complete(prompt, "learner")[0] == site.plain(prompt) == expected
    for other in ("tenant-b", None):
        assert site.ignores(prompt, other)
    assert site.metric("spectra:live_texts_total") >= 1
    assert site.metric("spectra:live_dropped_total") == 0


def test_keys_limit_namespaces_and_share_no_prefix(site: RetrievalSite) -> None:
    prompt, body = "over the quiet town", {"model": "tiny", "prompt": [5, 6, 7] * 60, "max_tokens": 1}
    reader = site.key("reader")

    def cached(headers: dict[str, str]) -> int:
        usage = site.http.post("/v1/completions", json=body, headers=headers).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached({}), cached({}), cached(reader), cached(reader)] == [0, 128, 0, 128]
    assert httpx.post(f"{site.server.base}/v1/completions", json=body, timeout=LIMIT_S).status_code == 401
    assert site.http.get("/metrics", headers=reader).status_code == 403
    for namespace, status in (("tenant-a", 403), ("learner", 200)):
        asked = SHORT | {"model": "tiny", "prompt": prompt, "speculative": {"namespace": namespace}}
        assert site.http.post("/v1/completions", json=asked, headers=reader).status_code == status
    learnt = site.metric("spectra:live_texts_total")
    assert site.complete("a text of the operator", "learner")[1] < FEW
    # Texts are learned in order, so that the reader's would have been learned by now.
    wait_until(lambda: site.metric("spectra:live_texts_total") > learnt)
    assert site.ignores(prompt, "learner")


def test_a_key_has_its_rate_and_a_removed_key_is_unknown(site: RetrievalSite) -> None:
    limited, asked = site.key("limited"), {"model": "tiny", "prompt": "Snow", "max_tokens": 1}
    served = site.http.post("/v1/completions", json=asked, headers=limited)
    assert (served.status_code, served.headers["x-ratelimit-remaining-requests"]) == (200, "0")

    def refused() -> httpx.Response | None:
        answer = site.http.post("/v1/completions", json=asked, headers=limited)
        return answer if answer.is_error else None  # a minute may have passed since the last one

    error = wait_until(refused)
    assert (error.status_code, error.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(error.headers["Retry-After"]) > 0
    write_keys(site.folder, {name: key for name, key in site.keys.items() if name != "limited"})
    wait_until(lambda: site.http.get("/v1/models", headers=limited).status_code == 401)
    assert site.http.get("/v1/models").status_code == 200
    write_keys(site.folder, site.keys)
    wait_until(lambda: site.http.get("/v1/models", headers=limited).status_code != 401)


def test_only_pages_of_a_named_origin_and_offered_methods_are_allowed(site: RetrievalSite) -> None:
    for origin, status in ((ORIGIN, 200), ("https://other.example.com", 400)):
        preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        preflight["Access-Control-Request-Headers"] = "authorization, content-type"
        # A browser sends no key yet.
        answer = httpx.options(f"{site.server.base}/v1/chat/completions", headers=preflight, timeout=None)
        assert answer.status_code == status
        assert answer.headers.get("access-control-allow-origin") == (ORIGIN if status == 200 else None)
    for method, status in (("pld", 200), ("rest", 200), ("suffix", 400), ("pld+suffix", 400)):
        body = SHORT | {"model": "tiny", "prompt": "Snow", "speculative": {"method": method}}
        assert site.http.post("/v1/completions", json=body).status_code == status, method


def test_requests_do_not_notice_a_redis_that_is_killed_and_returns_empty(site: RetrievalSite) -> None:
    expected = site.plain("Snow falls on")
    version = site.publish([expected])
    wait_until(lambda: site.version == version)
    with Background(site, "Snow falls on", expected), Background(site, "Snow falls on", expected, "learner"):
        site.redis.kill()
        wait_until(lambda: "away" in site.server.health()["retrieval_problem"])
        assert site.metric("spectra:retrieval_staleness_seconds") > 0
        assert site.knows("Snow falls on")
        site.redis.start()
        wait_until(lambda: "no snapshot" in site.server.health()["retrieval_problem"])
        assert site.knows("Snow falls on")
        version = site.publish([expected, expected[:20]])
        wait_until(lambda: site.version == version)
        wait_until(lambda: not site.server.health()["retrieval_problem"])


def test_drafting_continues_while_a_killed_retrieval_service_is_replaced(site: RetrievalSite) -> None:
    expected = site.plain("Snow falls on")
    with Background(site, "Snow falls on", expected):
        site.server.process_of("Retrieval").kill()
        assert site.knows("Snow falls on")
        version = site.publish([expected, expected[:30]])
        wait_until(lambda: site.version == version)
    assert site.knows("Snow falls on")
