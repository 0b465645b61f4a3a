"""The key file: an error names its line and field, and a change takes effect without disturbing a request."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app.access import keyring as keyrings
from app.access.caller import StatusError
from app.access.key_file import changing, digest_of, new_key, parse_records, read_records
from app.access.keyring import Keyring
from engine.errors import ConfigError
from tests.app.access.conftest import Keys, Serve
from tests.support.waiting import wait_until, wait_until_async

GOOD = {"id": "k", "sha256": "0" * 64, "tenant": "t"}
TEXT = {"model": "tiny", "prompt": "hello", "max_tokens": 40}
PATH = "/v1/completions"
KEY = new_key()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": "a b"}, "id is 'a b'; it must be 1 to 64 letters"),
        ({"tenant": ""}, "tenant is ''; it must be 1 to 128"),
        ({"namespaces": ["ok", "../up"]}, "namespaces.1 is '../up'; it must be 1 to 128"),
        ({"max_priority": 2**31}, f"max_priority is {2**31}; it must be below {2**31}"),
        ({"methods": ["magic"]}, "methods: unknown method 'magic'"),
        ({"max_nodes": 5000}, "max_nodes is 5000; it must be at most 4096"),
        ({"requests_per_minute": 0}, "requests_per_minute is 0; it must be at least 1"),
        ({"tokens_per_minute": 1.5}, "tokens_per_minute is 1.5; it must be an integer"),
        ({"expires": "2030-01-01"}, "expires is '2030-01-01'; it must be a time with its zone"),
        ({"admin": "yes"}, "admin is 'yes'; it must be true or false"),
        ({"prioritty": 1}, "prioritty is unknown; the fields are id, sha256"),
        ({"sha256": "hunter2"}, "sha256 is something else; it must be the 64 hexadecimal digits"),
        ({"id": "k0"}, "id k0 is that of line 1 too"),
        ({"id": "x", "sha256": "1" * 64}, "sha256 is that of line 1 too"),
        ({"sha256": KEY}, "holds a key"),
        ({KEY: 1}, "holds a key"),
    ],
)
def test_a_wrong_record_is_refused_without_showing_a_secret(fields: dict[str, Any], message: str) -> None:
    lines = [json.dumps(GOOD | {"id": "k0", "sha256": "1" * 64}), "", json.dumps(GOOD | fields)]
    with pytest.raises(ConfigError) as caught:
        parse_records("\n".join(lines).encode(), "keys.jsonl")
    assert str(caught.value).startswith("keys.jsonl, line 3")
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("line", ["{}", "[]", "3", "nonsense", '{"id": "a"', "\x00", "\ufeff{}", "{" * 100_000])
def test_a_line_that_is_not_a_record_is_refused(line: str) -> None:
    with pytest.raises(ConfigError, match="line 1"):
        parse_records(line.encode(), "keys.jsonl")


def test_concurrent_changes_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"

    def add(number: int) -> None:
        with changing(path) as lines:
            lines.append(json.dumps({"id": str(number), "sha256": digest_of(str(number)), "tenant": "t"}).encode())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(24)))
    assert {record.id for record in read_records(path)} == set(map(str, range(24)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["keys.jsonl"]


def test_a_change_that_fails_leaves_the_file_and_a_link_to_it(tmp_path: Path) -> None:
    path, link = tmp_path / "keys.jsonl", tmp_path / "link"
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
    except StatusError as error:
        return error.status != 401
    return True


def test_a_file_that_is_wrong_or_missing_keeps_the_last_good_keys(keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spectra.access")
    keys.add("a")
    keyring = Keyring(keys.path)
    good = keys.path.read_text()
    for text in (good + "nonsense\n", None):
        keys.path.write_text(text) if text is not None else keys.path.unlink()
        keyring.refresh()
        keyring.refresh()
        assert finds(keyring, keys.keys["a"])
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]  # one for each change
    assert "line 2" in caplog.text
    keys.records.clear()
    keys.write()
    keyring.refresh()
    assert not finds(keyring, keys.keys["a"])  # even the last key can be revoked
    assert caplog.records[-1].getMessage().endswith("has 0 keys now")


def test_the_polling_thread_sees_a_new_key(keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Keyring(tmp_path / "absent")
    monkeypatch.setattr(keyrings, "POLL_S", 0.01)
    keys.add("a")
    keyring = Keyring(keys.path)
    keyring.follow()
    keys.add("b")
    wait_until(lambda: finds(keyring, keys.keys["b"]))


def test_usage_of_a_key_survives_a_refresh_and_goes_with_the_key(keys: Keys) -> None:
    keys.add("a", requests_per_minute=2)
    keyring = Keyring(keys.path)

    def left() -> str:
        return keyring.find(keys.keys["a"].encode())[1].headers()["x-ratelimit-remaining-requests"]

    keyring.find(keys.keys["a"].encode())[1].enter()
    keys.add("b")
    keyring.refresh()
    assert left() == "1"
    record = keys.records.pop("a")
    keys.write()
    keyring.refresh()
    assert finds(keyring, keys.keys["b"])
    keys.records["a"] = record
    keys.write()
    keyring.refresh()
    assert left() == "2"


async def test_a_running_request_survives_the_removal_of_its_key(edge: Serve, keys: Keys, backend: Any) -> None:
    stays, goes = keys.add("stays"), keys.add("goes")
    keyring = Keyring(keys.path)
    backend.holds_after = 2
    async with edge(keyring) as client:
        running = [asyncio.create_task(client.post(PATH, json=TEXT, headers=headers)) for headers in (stays, goes)]
        await wait_until_async(lambda: len(backend.running) == 2)
        del keys.records["goes"]
        new = keys.add("new")
        await asyncio.to_thread(keyring.refresh)
        backend.holds_after = None
        assert [answer.status_code for answer in await asyncio.gather(*running)] == [200, 200]
        statuses = [(await client.post(PATH, json=TEXT, headers=headers)).status_code for headers in (stays, goes, new)]
    assert statuses == [200, 401, 200]
