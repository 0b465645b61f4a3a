"""The playground with a server that keeps answers, and connections that break."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.api.application import create_app
from app.api.http import Api
from app.api.service import ServiceSettings
from app.playground.options import PlaygroundOptions
from app.playground.playground import Playground
from tests.app.conftest import ScriptedBackend, listening
from tests.app.load.conftest import TEXT
from tests.newcomer.playground.walks import OUTCOME, READY
from tests.support.browser import Browser
from tests.support.keeping_server import STREAM, KeepingServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster
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


def test_a_page_continues_an_answer_whose_connection_breaks(window: Browser, keeping: KeepingServer) -> None:
    keeping.cuts, keeping.refused_reads = [0, 300], 1
    keeping.holds = True
    window.wait_for(READY)
    window.click("#send")
    window.wait_for(SHOWN, "Größe")
    keeping.holds = False
    assert window.wait_for(OUTCOME).startswith("Done: ")
    assert window.text("#answer") == TEXT
    assert window.text("#connection").startswith("reconnected after ")
    assert [method for method, _, _ in keeping.calls] == ["POST", "POST", "GET", "GET"]


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


def test_stop_deletes_the_answer(window: Browser, keeping: KeepingServer) -> None:
    keeping.cuts, keeping.holds = [300], True
    window.wait_for(READY)
    window.click("#send")
    window.wait_for(SHOWN, "Größe")
    window.click("#stop")
    assert window.wait_for(OUTCOME).startswith("Stopped after ")
    wait_until(lambda: ("DELETE", STREAM, "") in keeping.calls)
