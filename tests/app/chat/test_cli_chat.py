"""``spectra chat`` with a real server on a socket."""

from __future__ import annotations

import signal
import threading

import pytest

from tests.app.chat.conftest import CTRL_C, Chat
from tests.app.conftest import ANSWER, ScriptedBackend, listening
from tests.app.load.conftest import TEXT, Script
from tests.support.spectra_command import run_cli
from tests.support.waiting import wait_until


def test_an_answer_in_a_pipe_is_plain_text_with_its_figures(chat: Chat, server: str, backend: ScriptedBackend) -> None:
    shown = chat(server, "Who is the fox?\n/quit\n", "--temperature", "0", "--seed", "5")
    text, figures, _ = shown.split("\n")
    assert text == ANSWER
    assert figures.startswith("[")
    assert " forwards, " in figures
    assert figures.endswith(", seed 5]")
    assert backend.seen[0].params.seed == 5


def test_control_characters_of_a_model_reach_no_terminal(chat: Chat, server: str, backend: ScriptedBackend) -> None:
    backend.answer = "A \x1b]52;c;ZXZpbA==\x07title\r and\n\ta tab"
    shown = chat(server, "One?\n", "--temperature", "0", is_terminal=True)
    assert "> A \\x1b]52;c;ZXZpbA==\\x07title\\x0d and\n\ta tab\n" in shown
    assert shown.startswith("tiny at ")


def test_commands_change_the_next_request(chat: Chat, server: str, backend: ScriptedBackend) -> None:
    shown = chat(server, "/method pld\n/seed 7\n/temperature 0.5\nOne?\n/method\n/seed\nTwo?\n/new\nThree?\n/help\n")
    assert [request.method for request in backend.seen] == ["pld", "", ""]
    assert backend.seen[0].params.seed == 7
    assert [request.params.temperature for request in backend.seen] == [0.5] * 3
    first, second, third = (len(request.prompt) for request in backend.seen)
    assert second > first + 20  # the conversation is sent
    assert third < second  # and forgotten
    for words in ("(method: pld)", "(seed: a new one for each answer)", "/race A B"):
        assert words in shown


def test_a_race_runs_two_methods_with_one_seed_and_compares(chat: Chat, server: str, backend: ScriptedBackend) -> None:
    lines = "/temperature 0.8\n/race autoregressive pld Who is the fox?\n/race pld autoregressive\n"
    shown = chat(server, lines)
    one, two, three, four = backend.seen
    assert (one.method, two.method, three.method) == ("autoregressive", "pld", "pld")
    assert one.params.seed == two.params.seed
    assert one.scope != two.scope  # the second cannot draft from the first
    assert one.prompt == two.prompt == three.prompt == four.prompt
    assert shown.count("texts are identical") == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/nothing", "/nothing is no command; /help lists them"),
        ("/seed x", "/seed is 'x'; it must be a number from 0"),
        ("/trace perhaps", "/trace is 'perhaps'; it must be on or off"),
        ("/race pld", "/race needs two methods"),
        ("/race a b", "/race needs a question"),
        ("/method magic\nOne?", "HTTP 400: "),
        (CTRL_C, "(Ctrl-D or /quit ends)"),
    ],
)
def test_a_mistake_does_not_end_the_program(chat: Chat, server: str, line: str, message: str) -> None:
    shown = chat(server, f"{line}\n/method\nOne?\n", "--temperature", "0")
    assert message in shown
    assert ANSWER in shown


def test_an_interrupt_stops_the_answer_and_not_the_program(chat: Chat, server: str, backend: ScriptedBackend) -> None:
    def interrupt() -> None:
        wait_until(lambda: backend.running)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        wait_until(lambda: backend.cancelled)
        backend.holds_after = None

    backend.holds_after = 2
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
    thread = threading.Thread(target=interrupt)
    thread.start()
    shown = chat(server, "One?\nTwo?\n", "--temperature", "0")
    thread.join()
    signal.signal(signal.SIGINT, before)
    assert shown.count("[stopped, ") == 1
    assert ANSWER in shown
    assert len(backend.cancelled) == 1


@pytest.mark.parametrize("by_flag", [True, False])
def test_the_key_is_sent_and_a_refused_trace_dropped(
    chat: Chat, by_flag: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    script.replies.append((403, {}, [b'{"error": {"message": "speculative.trace needs a key with admin"}}']))
    if not by_flag:
        monkeypatch.setenv("SPECTRA_API_KEY", "secret")
    with listening(script) as url:
        shown = chat(url, "/trace on\nOne?\nTwo?\n", *(("--api-key", "secret") if by_flag else ()))
    assert {headers["authorization"] for headers in script.headers} == {"Bearer secret"}
    assert [body.get("speculative") for body in script.bodies] == [{"trace": True}, None, None]
    assert shown.count(TEXT) == 2
    assert "(without a trace: speculative.trace needs a key with admin)" in shown
    assert "secret" not in shown


def test_a_wrong_flag_is_named() -> None:
    run = run_cli("chat", "--url", "http://127.0.0.1:1")
    assert (run.status, run.err.count("no server answers at http://127.0.0.1:1/v1")) == (2, 1)
    run = run_cli("chat", "--timeout", 0)
    assert (run.status, run.err.count("--timeout is '0'; it must be a number from 0.1 to 86400")) == (2, 1)
