"""``spectra chat`` with a server that keeps answers and breaks connections."""

from __future__ import annotations

import io
import signal
import sys
import threading

import pytest

from tests.app.chat.conftest import Chat
from tests.app.conftest import listening
from tests.app.load.conftest import TEXT
from tests.support.keeping_server import KEPT, STREAM, KeepingServer
from tests.support.waiting import wait_until


@pytest.mark.parametrize("cuts", [[0], [100], [300, 0, 150], [len(b"".join(KEPT)) - 5]])
def test_an_answer_over_several_connections_is_the_undisturbed_one(chat: Chat, cuts: list[int]) -> None:
    server = KeepingServer(cuts)
    server.refused_reads = 1
    with listening(server) as url:
        text, figures, _ = chat(url, "One?\n").split("\n")
    assert text == TEXT
    assert "11 tokens, " in figures
    assert ", reconnected after " in figures
    assert server.asked[0]["stream_options"] == {"include_usage": True, "resumable": True}
    reads = [call for call in server.calls if call[0] == "GET"]
    assert {path for _, path, _ in reads} <= {STREAM}
    assert bool(reads) == bool(cuts[0])  # before the first event, the request is sent again


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
    assert len(server.calls) == 1


def test_a_server_that_keeps_no_answers_is_asked_without(chat: Chat) -> None:
    server = KeepingServer([], refusal="stream_options.resumable: this server keeps no answers")
    with listening(server) as url:
        shown = chat(url, "One?\nTwo?\n")
    assert shown.count(TEXT) == 2
    assert ["resumable" in body["stream_options"] for body in server.asked] == [True, False, False]


def test_a_stopped_answer_is_deleted(chat: Chat) -> None:
    def interrupt() -> None:
        wait_until(lambda: isinstance(sys.stdout, io.StringIO) and "Größe" in sys.stdout.getvalue())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    server = KeepingServer([300])
    server.holds = True
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
    thread = threading.Thread(target=interrupt)
    thread.start()
    with listening(server) as url:
        assert "[stopped, " in chat(url, "One?\n")
        server.holds = False
    thread.join()
    signal.signal(signal.SIGINT, before)
    assert [call[:2] for call in server.calls] == [("POST", "/v1/chat/completions"), ("DELETE", STREAM)]
