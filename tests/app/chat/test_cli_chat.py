"""``spectra chat`` at a terminal and in a pipe, against a real server on a socket whose answers are known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.cli import main
from tests.app.conftest import ANSWER, ScriptedBackend, listening
from tests.support.terminal import Terminal

COMMAND = (sys.executable, "-m", "app.cli", "chat")


@contextmanager
def at_terminal(server: str, *flags: str) -> Iterator[Terminal]:
    with Terminal([*COMMAND, "--url", server, *flags], os.environ) as terminal:
        assert "/help" in terminal.until("> ")
        yield terminal


def piped(server: str, lines: str, *flags: str) -> str:
    done = subprocess.run([*COMMAND, "--url", server, *flags], input=lines, capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_question_in_a_pipe_is_answered_plain_with_its_figures(server: str, backend: ScriptedBackend) -> None:
    told = piped(server, "Who is the fox?\n/quit\n", "--temperature", "0", "--seed", "5")
    text, figures, _ = told.split("\n")
    assert text == ANSWER
    assert figures.startswith("[")
    assert " forwards, " in figures
    assert figures.endswith(", seed 5]")
    assert "\x1b" not in told
    assert backend.seen[0].params.seed == 5


def test_control_characters_of_a_model_reach_no_terminal(server: str, backend: ScriptedBackend) -> None:
    backend.answer = "A \x1b]52;c;ZXZpbA==\x07title\r and\n\ta tab"
    told = piped(server, "One?\n", "--temperature", "0")
    assert told.startswith("A \\x1b]52;c;ZXZpbA==\\x07title\\x0d and\n\ta tab\n[")


def test_what_was_said_goes_with_the_next_question_and_new_forgets_it(server: str, backend: ScriptedBackend) -> None:
    piped(server, "One?\nTwo?\n/new\nThree?\n", "--temperature", "0")
    first, second, third = (len(request.prompt) for request in backend.seen)
    assert second > first + 20
    assert third < second


def test_commands_change_what_is_asked(server: str, backend: ScriptedBackend) -> None:
    lines = "/method pld\n/seed 7\n/temperature 0.5\nOne?\n/method\n/seed\nTwo?\n"
    told = piped(server, lines)
    assert [request.method for request in backend.seen] == ["pld", ""]
    assert backend.seen[0].params.seed == 7
    assert [request.params.temperature for request in backend.seen] == [0.5, 0.5]
    assert "(method: pld)" in told
    assert "(seed: a new one for each answer)" in told


def test_a_race_asks_twice_with_one_seed_and_compares(server: str, backend: ScriptedBackend) -> None:
    told = piped(server, "/temperature 0.8\n/race autoregressive pld Who is the fox?\n/race pld autoregressive\n")
    one, two, three, four = backend.seen
    assert (one.method, two.method, three.method) == ("autoregressive", "pld", "pld")
    assert one.params.seed == two.params.seed
    assert one.scope != two.scope  # the second drafts from nothing of the first
    assert one.prompt == two.prompt == three.prompt == four.prompt
    assert told.count("texts are identical") == 2
    assert [line.split()[0] for line in told.splitlines() if "  " in line].count("pld") == 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/nothing", "/nothing is no command; /help lists them"),
        ("/seed x", "/seed is 'x'; it must be a number from 0"),
        ("/temperature 9", "/temperature is '9'"),
        ("/trace perhaps", "/trace takes on or off"),
        ("/race pld", "/race takes two methods"),
        ("/race a b", "/race needs a question"),
        ("/method magic\nOne?", "HTTP 400: "),
    ],
)
def test_a_mistake_is_told_and_the_program_goes_on(server: str, line: str, says: str) -> None:
    told = piped(server, f"{line}\n/method\nOne?\n", "--temperature", "0")
    assert says in told
    assert ANSWER in told


def test_ctrl_c_stops_the_answer_and_not_the_program(server: str, backend: ScriptedBackend) -> None:
    with at_terminal(server, "--temperature", "0") as terminal:
        backend.delay = 30.0  # the answer would take many minutes
        backend.running.clear()
        terminal.type("One?\r")
        while not backend.running:
            assert terminal.process.poll() is None
        terminal.type("\x03")
        assert "[stopped, " in terminal.until("]")
        terminal.until("> ")
        backend.delay = 0.0
        terminal.type("Two?\r")
        assert ANSWER in terminal.until(" seed ")
        terminal.until("> ")
        terminal.until_it_waits()
        terminal.type("\x03")
        terminal.until("/quit ends)")
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.process.wait(240) == 0
    assert len(backend.cancelled) == 1


class KeyedServer:
    """An ASGI application that refuses traces, as ours does to keys without ``admin``, and notes what it is sent."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.keys.append(dict(scope["headers"]).get(b"authorization", b"").decode())
        if scope["path"].endswith("/models"):
            await self._answer(send, 200, b'{"data": [{"id": "keyed"}]}')
            return
        self.bodies.append(json.loads((await receive())["body"]))
        if "trace" in self.bodies[-1].get("speculative", {}):
            await self._answer(send, 403, b'{"error": {"message": "speculative.trace needs a key with admin"}}')
        else:
            await self._answer(send, 200, b'data: {"choices": [{"delta": {"content": "Yes."}}]}\n\ndata: [DONE]\n\n')

    async def _answer(self, send: Any, status: int, body: bytes) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize("by_flag", [True, False])
def test_the_key_is_sent_and_a_refused_trace_is_done_without(by_flag: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = KeyedServer()
    if not by_flag:
        monkeypatch.setenv("SPECTRA_API_KEY", "secret")
    with listening(asked) as url:
        told = piped(url, "/trace on\nOne?\nTwo?\n", *(("--api-key", "secret") if by_flag else ()))
    assert set(asked.keys) == {"Bearer secret"}
    assert [body.get("speculative") for body in asked.bodies] == [{"trace": True}, None, None]
    assert told.count("Yes.") == 2
    assert "(without a trace: speculative.trace needs a key with admin)" in told
    assert "secret" not in told


def test_a_server_that_is_not_there_and_a_wrong_flag_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", "http://127.0.0.1:1"]) == 2
    assert "no server answers at http://127.0.0.1:1/v1" in capsys.readouterr().err
    assert main(["chat", "--timeout", "0"]) == 2
    assert "--timeout is '0'; it must be a number from 0.1 to 86400" in capsys.readouterr().err
    assert main(["chat", "--url", "localhost"]) == 2
    assert "--url 'localhost' must begin with http://" in capsys.readouterr().err
