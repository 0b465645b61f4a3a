"""The file of keys: what is wrong in it is named, and a change takes effect without disturbing a request."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.access.errors import AccessError
from app.access.key_file import changing, digest_of, new_key, read_records
from app.access.keyring import POLL_S, Keyring
from app.access.records import KeyRecord, parse_records
from engine.errors import ConfigError
from tests.app.access.conftest import Keys, Serve

DIGEST = "0" * 64
GOOD = {"id": "k", "sha256": DIGEST, "tenant": "t"}
TEXT = {"model": "tiny", "prompt": "hello", "max_tokens": 40, "ignore_eos": True}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"id": "a b"}, "id is 'a b'; it must be 1 to 64 letters"),
        ({"tenant": ""}, "tenant is ''; it must be 1 to 128"),
        ({"tenant": "a/b"}, "tenant is 'a/b'"),
        ({"tenant": None}, "tenant is None; it must be text"),
        ({"namespaces": ["ok", "../up"]}, "namespaces.1 is '../up'; it must be 1 to 128"),
        ({"namespaces": "all"}, "namespaces is 'all'; it must be"),
        ({"max_priority": 2**31}, f"max_priority is {2**31}; it must be below {2**31}"),
        ({"max_priority": "high"}, "max_priority is 'high'; it must be an integer"),
        ({"methods": ["magic"]}, "methods: unknown method 'magic'"),
        ({"max_nodes": 5000}, "max_nodes is 5000; it must be at most 4096"),
        ({"requests_per_minute": 0}, "requests_per_minute is 0; it must be at least 1"),
        ({"tokens_per_minute": 1.5}, "tokens_per_minute is 1.5; it must be an integer"),
        ({"max_concurrent": True}, "max_concurrent is True; it must be an integer"),
        ({"expires": "2030-01-01"}, "expires is '2030-01-01'; it must be a time with its zone"),
        ({"admin": "yes"}, "admin is 'yes'; it must be true or false"),
        ({"prioritty": 1}, "prioritty is unknown; the fields are id, sha256"),
        ({"sha256": "hunter2"}, "sha256 is something else; it must be the 64 hexadecimal digits"),
        ({"id": "k0"}, "id k0 is that of line 1 too"),
        ({"id": "x", "sha256": "1" * 64}, "sha256 is that of line 1 too"),
    ],
)
def test_a_wrong_record_is_named_by_line_field_and_value(fields: dict[str, Any], says: str) -> None:
    first = GOOD | {"id": "k0", "sha256": "1" * 64}
    text = "\n".join([json.dumps(first), "", json.dumps(GOOD | fields)])
    with pytest.raises(ConfigError) as caught:
        parse_records(text.encode(), "keys.jsonl")
    assert str(caught.value).startswith("keys.jsonl, line 3: ")
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("line", ["{}", "[]", "3", "nonsense", '{"id": "a"', "\x00", "\ufeff{}", "{" * 100_000])
def test_what_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(ConfigError, match="line 1"):
        parse_records(line.encode(), "keys.jsonl")


def test_a_key_in_the_file_is_refused_and_not_shown() -> None:
    key = new_key()
    for fields in ({"sha256": key}, {"id": key}, {key: 1}):
        with pytest.raises(ConfigError, match="line 1 holds a key") as caught:
            parse_records(json.dumps(GOOD | fields).encode(), "keys.jsonl")
        assert key not in str(caught.value)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
fields = st.dictionaries(st.sampled_from([*KeyRecord.model_fields, "other"]), values, max_size=6)


def parsed(text: bytes) -> tuple[list[KeyRecord] | None, str]:
    try:
        return parse_records(text, "f"), ""
    except ConfigError as error:
        return None, str(error)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=40) | fields.map(lambda f: json.dumps(GOOD | f).encode()), max_size=4))
def test_any_file_is_read_or_refused_with_its_line(lines: list[bytes]) -> None:
    text = b"\n".join(lines)
    records, said = parsed(text)
    if records is None:
        assert said.startswith("f, line ")
        return
    written = "\n".join(record.model_dump_json(exclude_defaults=True) for record in records)
    assert parse_records(written.encode(), "f") == records


def test_changes_by_several_commands_at_once_all_stay(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"

    def add(number: int) -> None:
        with changing(path) as lines:
            lines.append(json.dumps({"id": str(number), "sha256": digest_of(str(number)), "tenant": "t"}).encode())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(40)))
    assert {record.id for record in read_records(path)} == set(map(str, range(40)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["keys.jsonl"]


def test_a_change_that_fails_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    link = tmp_path / "link"
    link.symlink_to(path)
    with changing(link) as lines:
        lines.append(json.dumps(GOOD).encode())
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="line 2"), changing(link) as lines:
        lines.append(b"nonsense")
    for wrong in (b"", b"nonsense"):
        with pytest.raises(ConfigError, match="line 1"), changing(link) as lines:
            lines[:] = [b"{}", wrong]
    assert path.read_bytes() == before
    assert link.is_symlink()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["keys.jsonl", "link"]


def finds(keyring: Keyring, key: str) -> bool:
    try:
        keyring.find(key.encode())
    except AccessError as error:
        return error.status != 401
    return True


def test_a_file_that_is_wrong_or_gone_leaves_the_last_good_keys(keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spectra.access")
    keys.add("a")
    keyring = Keyring(keys.path)
    good = keys.path.read_text()
    for text in (good + "nonsense\n", None):
        keys.path.write_text(text) if text is not None else keys.path.unlink()
        keyring.refresh()
        keyring.refresh()
        assert finds(keyring, keys.keys["a"])
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]  # once for each change
    assert "line 2" in caplog.text
    keys.records.clear()
    keys.write()
    keyring.refresh()
    assert not finds(keyring, keys.keys["a"])  # the last key can be revoked
    assert caplog.records[-1].getMessage().endswith("has 0 keys now")


def test_a_server_that_cannot_read_its_keys_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Keyring(tmp_path / "absent")
    (tmp_path / "empty").touch()
    assert not finds(Keyring(tmp_path / "empty"), "sk-any")


def test_a_change_is_seen_by_the_thread_that_follows_the_file(keys: Keys) -> None:
    keys.add("a")
    keyring = Keyring(keys.path)
    keyring.follow()
    keys.add("b")
    waited = threading.Event()
    for _ in range(1200):
        if finds(keyring, keys.keys["b"]):
            break
        waited.wait(POLL_S / 20)
    assert finds(keyring, keys.keys["b"])


def test_what_a_key_has_used_outlives_a_reading_and_leaves_with_the_key(keys: Keys) -> None:
    keys.add("a", requests_per_minute=2)
    keys.add("b")
    keyring = Keyring(keys.path)
    keyring.find(keys.keys["a"].encode())[1].enter()
    keys.add("c")
    keyring.refresh()
    allowance = keyring.find(keys.keys["a"].encode())[1]
    assert allowance.headers()["x-ratelimit-remaining-requests"] == "1"
    del keys.records["a"]
    keys.write()
    keyring.refresh()
    finds(keyring, keys.keys["b"])
    assert not keyring._allowances.keys() - {"b"}


async def test_the_file_changes_under_load_and_no_request_notices(edge: Serve, keys: Keys, backend: Any) -> None:
    stays, goes = keys.add("stays"), keys.add("goes")
    keyring = Keyring(keys.path)
    backend.delay = 0.001
    statuses: list[int] = []
    async with edge(keyring) as client:

        async def ask() -> None:
            while len(statuses) < 200:
                answer = await client.post("/v1/completions", json=TEXT, headers=stays)
                statuses.append(answer.status_code)

        def change() -> None:
            for number in range(40):
                keys.add(f"more-{number}")
                keyring.refresh()

        running = asyncio.create_task(client.post("/v1/completions", json=TEXT | {"max_tokens": 100}, headers=goes))
        while not backend.running:
            await asyncio.sleep(0)
        del keys.records["goes"]
        await asyncio.gather(asyncio.to_thread(change), *(ask() for _ in range(8)))
        assert (await running).status_code == 200  # it had begun
        assert (await client.post("/v1/completions", json=TEXT, headers=goes)).status_code == 401
        assert (await client.get("/v1/models", headers=keys.headers("more-39"))).status_code == 200
    assert set(statuses) == {200}
