"""``spectra chat`` with a server that keeps answers and breaks connections."""

from __future__ import annotations

import errno
import io
import re
import signal
import sys
import threading
from http import HTTPStatus

import pytest

from app.chat.loop import Chat as Conversation
from app.chat.loop import ChatConversation
from app.chat.screen import Screen
from app.load.stream import Endpoint
from tests.app.chat.conftest import Chat
from tests.app.conftest import listening
from tests.app.load.conftest import TEXT
from tests.support.keeping_server import KEPT, RETRY_AFTER_S, STREAM, KeepingServer
from tests.support.waiting import wait_until

BUSY = HTTPStatus.SERVICE_UNAVAILABLE
LENGTH = len(b"".join(KEPT))


@pytest.mark.parametrize("cuts", [[0, BUSY], [100], [300, BUSY, 0, 150], [LENGTH - 5], [LENGTH - 20]])
def test_an_answer_over_several_connections_is_the_undisturbed_one(chat: Chat, cuts: list[int]) -> None:
    server = KeepingServer(cuts)
    with listening(server) as url:
        text, figures, _ = chat(url, "One?\n").split("\n")
    assert text == TEXT
    assert "11 tokens, " in figures
    lost = re.search(r", reconnected after ([\d.]+) s", figures)
    assert lost is not None
    assert float(lost[1]) >= RETRY_AFTER_S * (BUSY in cuts)
    assert server.asked[0]["stream_options"] == {"include_usage": True, "resumable": True}
    reads = [call for call in server.calls if call[0] == "GET"]
    assert {path for _, path, _ in reads} <= {STREAM}
    assert bool(reads) == bool(cuts[0])  # before the first event, the request is sent again
    assert server.calls[-1][:2] == ("DELETE", STREAM)


def test_a_terminal_shows_a_lost_connection(chat: Chat) -> None:
    with listening(KeepingServer([300])) as url:
        shown = chat(url, "One?\n", is_terminal=True)
    assert "\n(connection lost)\x1b[0m\x1b[2m (reconnected after 0." in shown


def test_an_error_of_the_answer_ends_it(chat: Chat) -> None:
    server = KeepingServer([])
    server.events = [
        b'id: 1\ndata: {"id": "chatcmpl-7/", "choices": []}\n\n',
        b'data: {"error": {"message": "lost"}}\n\n',
    ]
    with listening(server) as url:
        assert "[error event: lost]" in chat(url, "One?\n")
    assert [method for method, _, _ in server.calls] == ["POST", "DELETE"]


def test_a_server_that_keeps_no_answers_is_asked_without(chat: Chat) -> None:
    server = KeepingServer([], refusal="stream_options.resumable: this server keeps no answers")
    with listening(server) as url:
        shown = chat(url, "One?\nTwo?\n")
    assert shown.count(TEXT) == 2
    assert ["resumable" in body["stream_options"] for body in server.asked] == [True, False, False]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_answer_is_deleted(chat: Chat, number: signal.Signals) -> None:
    def interrupt() -> None:
        wait_until(lambda: isinstance(sys.stdout, io.StringIO) and "Größe" in sys.stdout.getvalue())
        signal.pthread_kill(threading.main_thread().ident or 0, number)

    server = KeepingServer([300])
    server.holds = True
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
    thread = threading.Thread(target=interrupt)
    thread.start()
    with listening(server) as url:
        assert ("[stopped, " in chat(url, "One?\n")) == (number == signal.SIGINT)  # the other ends the program
        server.holds = False
    thread.join()
    signal.signal(signal.SIGINT, before)
    assert [call[:2] for call in server.calls] == [("POST", "/v1/chat/completions"), ("DELETE", STREAM)]


def test_a_closed_terminal_is_no_lost_connection() -> None:
    class ClosedTerminal(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.EIO, "closed")

    server = KeepingServer([])
    with listening(server) as url:
        talk = Conversation(
            ChatConversation("tiny"), Endpoint(f"{url}/v1/chat/completions"), None, Screen(ClosedTerminal(), False)
        )
        with pytest.raises(OSError, match="closed"):
            talk.run(lambda: "One?")
    assert [method for method, _, _ in server.calls] == ["POST", "DELETE"]
