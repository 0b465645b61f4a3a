"""The page before an edge that asks for keys, and before models that write HTML, or nothing for an hour."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.access.key_file import digest_of, new_key
from app.access.keyring import Keyring
from app.access.options import AccessOptions
from app.api.application import create_app
from app.api.http import Api
from app.api.service import Settings
from app.playground.options import PlaygroundOptions
from app.playground.playground import Playground
from benchmarks.support.browser import Browser, browsing
from tests.app.conftest import listening
from tests.support.chromium import need_chromium

pytestmark = pytest.mark.cluster  # by the memory and the processors that a browser takes

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script> & <b>bold</b>'


@pytest.fixture(scope="module")
def stranger() -> Iterator[Browser]:
    need_chromium()
    with browsing("") as browser:
        yield browser


@pytest.fixture
def key_file(tmp_path: Path) -> tuple[Path, str, str]:
    """A file with a key and an admin's key, and both."""
    plain, admin = new_key(), new_key()
    rows = [(plain, "plain", "false"), (admin, "boss", "true")]
    lines = [
        f'{{"id": "{name}", "sha256": "{digest_of(key)}", "tenant": "a", "admin": {is_admin}}}'
        for key, name, is_admin in rows
    ]
    file = tmp_path / "keys.jsonl"
    file.write_text("\n".join(lines))
    return file, plain, admin


def give_key(page: Browser, key: str) -> None:
    """Type a key in place of the one before."""
    field = page.find("#key")
    field.clear()
    field.send_keys(key + "\t")


def test_without_a_key_the_page_says_so_and_only_an_admins_shows_drafts(
    stranger: Browser, backend: Any, key_file: tuple[Path, str, str]
) -> None:
    file, plain, admin = key_file
    api = Api(backend, backend.tokenizer, Settings())
    app = create_app(api, AccessOptions(api_keys=str(file)), Keyring(file), Playground(PlaygroundOptions()))
    with listening(app) as base:
        stranger.base = base
        stranger.open()
        stranger.wait_for("document.getElementById('alert').textContent.includes('asks for a key')")
        assert "missing; it must be: Bearer KEY" in stranger.text("#alert")
        assert stranger.run("return document.activeElement.id") == "key"
        give_key(stranger, "sk-wrong")
        stranger.wait_for("document.getElementById('alert').textContent.includes('not known to this server')")
        give_key(stranger, plain)
        stranger.wait_for("!document.getElementById('send').disabled")
        assert stranger.run("return !document.getElementById('untraced').hidden")
        stranger.click("#send")
        assert stranger.wait_for("document.getElementById('outcome').textContent").startswith("Done: ")
        assert "The fox" in stranger.text("#answer")
        assert stranger.all("#answer .token") == []
        assert stranger.run("return document.getElementById('legend').hidden")
        assert int(stranger.text("[data-counter=tokens]")) > 20
        give_key(stranger, admin)
        stranger.wait_for("document.getElementById('untraced').hidden")
        assert stranger.run("return Object.keys(localStorage).length + document.cookie.length") == 0


def test_what_a_model_writes_is_text(stranger: Browser, backend: Any) -> None:
    backend.answer = HOSTILE
    app = create_app(Api(backend, backend.tokenizer, Settings()), playground=Playground(PlaygroundOptions(True)))
    with listening(app) as base:
        stranger.base = base
        stranger.open()
        stranger.wait_for("!document.getElementById('send').disabled && document.querySelector('.chip')")
        stranger.set("temperature", 0)
        title = stranger.driver.title
        stranger.click("#send")
        stranger.wait_for("document.getElementById('outcome').textContent")
        assert stranger.text("#answer") == HOSTILE
        assert stranger.all("#answer img, #answer script, #answer b") == []
        assert stranger.driver.title == title


@pytest.fixture
def slow(stranger: Browser, backend: Any) -> Iterator[Browser]:
    """The playground before a model whose first token would take an hour."""
    backend.delay = 3600.0
    with listening(
        create_app(Api(backend, backend.tokenizer, Settings()), playground=Playground(PlaygroundOptions()))
    ) as base:
        stranger.base = base
        stranger.open()
        stranger.wait_for("!document.getElementById('send').disabled && document.querySelector('.chip')")
        yield stranger


def test_a_race_that_is_stopped_before_the_last_turn_ends_and_another_may_begin(slow: Browser, backend: Any) -> None:
    slow.click("input[value=race]")
    slow.click("#in-turn")
    slow.click("#send")
    slow.wait_for("!document.getElementById('stop').disabled")
    slow.click("#stop")
    assert slow.wait_for("document.getElementById('verdict').textContent") == "No verdict: the race was stopped."
    slow.wait_for("!document.getElementById('send').disabled")
    assert slow.texts(".racer-outcome") == ["Stopped after 0 tokens.", "It was not asked.", ""]
    assert len(backend.seen) <= 1


def test_a_key_that_is_typed_while_an_answer_comes_lets_no_second_one_begin(slow: Browser) -> None:
    slow.click("#send")
    slow.set("max-tokens", 192)
    slow.run("document.getElementById('key').dispatchEvent(new Event('change'))")
    slow.wait_for("document.getElementById('max-tokens').value === '128'")  # the server's models were read again
    assert slow.run("return document.getElementById('send').disabled && !document.getElementById('stop').disabled")
    slow.click("#stop")
    slow.wait_for("!document.getElementById('send').disabled")
