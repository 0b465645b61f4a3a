"""The playground with a server that keeps answers, and connections that break."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

import pytest

from app.api.application import create_app
from app.api.http import Api
from app.api.service import ServiceSettings
from app.playground.options import PlaygroundOptions
from app.playground.playground import Playground
from tests.app.conftest import ScriptedBackend, listening
from tests.app.load.conftest import TEXT, event
from tests.newcomer.playground.walks import OUTCOME, READY
from tests.support.browser import Browser
from tests.support.keeping_server import KEPT, RETRY_AFTER_S, STREAM, KeepingServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster
BUSY = HTTPStatus.SERVICE_UNAVAILABLE
SHOWN = "document.getElementById('answer').textContent.includes(arguments[0])"


@pytest.fixture
def keeping(window: Browser, backend: ScriptedBackend) -> Iterator[KeepingServer]:
    playground = Playground(PlaygroundOptions(True, keeps_answers=True))
    app = create_app(Api(backend, backend.tokenizer, ServiceSettings()), playground=playground)
    server = KeepingServer([], app=app)
    with listening(server) as window.base:
        window.open()
        yield server
        server.holds = False


@pytest.mark.parametrize(
    ("cuts", "methods"),
    [
        ([0, BUSY, 300, BUSY], ["POST", "POST", "POST", "GET", "GET", "DELETE"]),
        ([len(b"".join(KEPT[:-1]))], ["POST", "GET", "DELETE"]),  # after the usage, which has no id
    ],
)
def test_a_page_continues_an_answer_whose_connection_breaks(
    window: Browser, keeping: KeepingServer, cuts: list[int], methods: list[str]
) -> None:
    keeping.cuts, keeping.holds = list(cuts), True
    window.wait_for(READY)
    window.click("#send")
    window.wait_for(SHOWN, "Größe")
    keeping.holds = False
    assert window.wait_for(OUTCOME).startswith("Done: ")
    assert window.text("#answer") == TEXT
    note = window.text("#connection")
    assert float(note.removeprefix("reconnected after ").removesuffix(" s")) >= RETRY_AFTER_S * (BUSY in cuts)
    wait_until(lambda: [method for method, _, _ in keeping.calls] == methods)


def test_dropped_connections_are_replaced(window: Browser, keeping: KeepingServer) -> None:
    keeping.cuts, keeping.holds = [300, 400], True
    window.wait_for(READY)
    window.click("#send")
    for shown in ("Größe", "日本"):
        window.wait_for(SHOWN, shown)
        window.click("#drop")
    assert window.wait_for(OUTCOME).startswith("Done: ")
    assert window.text("#answer") == TEXT
    assert window.run("return document.getElementById('drop').disabled")


@pytest.mark.parametrize("is_left", [False, True])
def test_a_stopped_or_left_answer_is_deleted(window: Browser, keeping: KeepingServer, is_left: bool) -> None:
    keeping.cuts, keeping.holds = [300], True
    window.wait_for(READY)
    window.click("#send")
    window.wait_for(SHOWN, "Größe")
    if is_left:
        window.driver.get("about:blank")
    else:
        window.click("#stop")
        assert window.wait_for(OUTCOME).startswith("Stopped after ")
    wait_until(lambda: ("DELETE", STREAM, "") in keeping.calls)


def test_a_lost_answer_can_be_stopped_and_not_dropped(window: Browser, keeping: KeepingServer) -> None:
    keeping.cuts = [300, *[BUSY] * 100]
    window.wait_for(READY)
    window.click("#send")
    window.wait_for("document.getElementById('connection').textContent === 'reconnecting …'")
    assert window.run("return document.getElementById('drop').disabled")
    window.click("#stop")
    assert window.wait_for(OUTCOME).startswith("Stopped after ")
    assert window.text("#connection") == ""


def test_text_before_an_error_is_shown(window: Browser, keeping: KeepingServer) -> None:
    keeping.events = [*KEPT[:3], event(error={"message": "lost"})]
    window.wait_for(READY)
    window.click("#send")
    window.wait_for("document.getElementById('alert').textContent === 'lost'")
    assert window.text("#answer") == TEXT[:10]
