"""A conversation in a terminal: a line is a question, a line with a slash a command."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import signal
import ssl
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.chat.answers import ChatAnswer, ask
from app.chat.screen import Screen, race_table
from app.load.stream import AttemptError, Endpoint, open_session
from engine.errors import ConfigError

PROMPT = "> "
HELP = """\
/method X        draft with X, as in /method suffix+token-recycling; /method alone: the server's default
/seed N          use seed N for every answer; /seed alone: a new one for each
/temperature T   0 is greedy; /temperature alone: the server's default
/race A B [Q]    ask Q, or the last question again, by both methods with one seed; compare texts, forwards, seconds
/trace on|off    show by colour which source drafted each token
/new             start a new conversation
/help            show this list
/quit            end the program, as Ctrl-D does; Ctrl-C stops an answer"""
REFUSED = (400, 403, 422)  # a server without traces or kept answers, or a key that may not see traces
MOST_SEED = (1 << 63) - 1
DRAWN_SEEDS = 1 << 31


@dataclass(slots=True)
class ChatConversation:
    """The messages so far, and the settings of the next request; None: the server's default."""

    model: str
    method: str | None = None
    seed: int | None = None  # of every answer; None: drawn anew for each
    temperature: float | None = None
    max_tokens: int | None = None  # of an answer
    trace: bool = True  # ask which source drafted each token
    resumable: bool = True  # ask the server to keep the answer, so that a lost connection does not lose it
    messages: list[dict[str, str]] = field(default_factory=list)  # the user's and the model's in turn

    def body(self, question: str, method: str | None, seed: int, salt: str | None = None) -> dict[str, Any]:
        """A request for the answer to the user's next question. ``salt`` is the request's ``cache_salt``."""
        speculative = {"method": method, "trace": self.trace or None}
        fields = {
            "model": self.model,
            "messages": [*self.messages, {"role": "user", "content": question}],
            "stream": True,
            "stream_options": {"include_usage": True} | ({"resumable": True} if self.resumable else {}),
            "seed": seed,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "cache_salt": salt,
            "speculative": {name: value for name, value in speculative.items() if value is not None} or None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def next_seed(self) -> int:
        return secrets.randbelow(DRAWN_SEEDS) if self.seed is None else self.seed

    def add(self, question: str, answer: ChatAnswer) -> None:
        """Add a question and its answer, unless the answer is empty."""
        if answer.text:
            self.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer.text}]


@dataclass(slots=True)
class Chat:
    """Asks questions, shows answers and runs commands."""

    talk: ChatConversation
    endpoint: Endpoint
    tls: ssl.SSLContext | None  # which https servers are trusted; None: those that the system trusts
    screen: Screen

    def run(self, read: Callable[[], str]) -> None:
        """Run until the input ends; ``read`` gives the next line and raises EOFError at the end."""
        while True:
            try:
                if line := read().strip():
                    self.line(line)
            except KeyboardInterrupt:
                self.screen.line("\n(Ctrl-D or /quit ends)")
            except ConfigError as error:
                self.screen.line(f"[{error}]")
            except EOFError as end:
                if isinstance(end.__cause__, OSError):
                    raise end.__cause__ from None
                return

    def line(self, line: str) -> None:
        """Ask a question or run a command.

        Raises:
            ConfigError: the command is unknown, or its value is wrong.
            EOFError: the user ends the program.
        """
        if not line.startswith("/"):
            self._ask(line)
            return
        name, _, text = line[1:].partition(" ")
        text = text.strip()
        match name:
            case "method":
                self.talk.method = text or None
                self.screen.line(f"(method: {text or 'the default of the server'})")
            case "seed":
                self.talk.seed = number(text, "/seed", 0, MOST_SEED, int) if text else None
                self.screen.line(f"(seed: {text or 'a new one for each answer'})")
            case "temperature":
                self.talk.temperature = number(text, "/temperature", 0, 2, float) if text else None
                self.screen.line(f"(temperature: {text or 'the default of the server'})")
            case "race":
                self._race(text)
            case "trace":
                if text not in ("on", "off"):
                    raise ConfigError(f"/trace is {text!r}; it must be on or off")
                self.talk.trace = text == "on"
                self.screen.line(f"(trace: {text})")
            case "new":
                self.talk.messages.clear()
                self.screen.line("(a new conversation)")
            case "help":
                self.screen.line(HELP)
            case "quit":
                raise EOFError
            case _:
                raise ConfigError(f"/{name} is no command; /help lists them")

    def _ask(self, question: str) -> None:
        answer, was_stopped = self._answer(self.talk, question, self.talk.method, self.talk.next_seed())
        if answer.failure is None or was_stopped:
            self.talk.add(question, answer)

    def _race(self, text: str) -> None:
        """Ask by two methods. Each answer has a cache of its own, so that the second does not draft from the first."""
        first, second, question = (*text.split(maxsplit=2), "", "", "")[:3]
        if not second:
            raise ConfigError("/race needs two methods, as in /race autoregressive suffix; a question may follow")
        talk = self.talk
        if not question:
            if not talk.messages:
                raise ConfigError("/race needs a question: none has been asked yet")
            question = talk.messages[-2]["content"]
            talk = replace(talk, messages=talk.messages[:-2])
        seed, answers = self.talk.next_seed(), []
        for method in (first, second):
            self.screen.line(f"--- {method}")
            answer, was_stopped = self._answer(talk, question, method, seed, secrets.token_hex(8))
            answers.append(answer)
            if was_stopped:
                return
        self.screen.line(race_table((first, second), answers))
        if talk is self.talk and answers[0].failure is None:
            talk.add(question, answers[0])

    def _answer(
        self, talk: ChatConversation, question: str, method: str | None, seed: int, salt: str | None = None
    ) -> tuple[ChatAnswer, bool]:
        """(the answer, whether the user stopped it). What the server refuses to add is asked for no more.

        Raises:
            EOFError: a signal ends the program.
        """
        while True:
            answer = ChatAnswer()
            was_stopped = False
            try:
                asyncio.run(self._stream(talk.body(question, method, seed, salt), answer))
            except KeyboardInterrupt:
                was_stopped = True
            except asyncio.CancelledError:
                raise EOFError from None
            if answer.failure is None or not self._drop_refused(talk, answer.failure):
                self.screen.end(answer, seed, was_stopped)
                return answer, was_stopped

    def _drop_refused(self, talk: ChatConversation, failure: AttemptError) -> bool:
        """Give up the trace, or that the answer is kept, if the server refuses it; returns whether it does."""
        if failure.status not in REFUSED:
            return False
        if "trace" in failure.message and talk.trace:
            self.screen.line(f"(without a trace: {failure.message})")
            self.talk.trace = talk.trace = False
            return True
        if ("stream_options" in failure.message or "resumable" in failure.message) and talk.resumable:
            self.talk.resumable = talk.resumable = False
            return True
        return False

    async def _stream(self, body: Mapping[str, Any], answer: ChatAnswer) -> None:
        """Ask; a signal that would end the program cancels this, so that the server stops the answer, too."""
        if (task := asyncio.current_task()) is not None:
            for number in (signal.SIGHUP, signal.SIGTERM):
                if signal.getsignal(number) is signal.SIG_DFL:
                    asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        async with open_session(self.tls) as session:
            await ask(session, self.endpoint, body, answer, self.screen.piece, self.screen.connection)


def number(text: str, what: str, least: float, most: float, kind: type[int] | type[float]) -> Any:
    """The number that was typed.

    Raises:
        ConfigError: it is none, or out of range.
    """
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        raise ConfigError(f"{what} is {text!r}; it must be a number from {least:g} to {most:g}")
    return value


def reader() -> Callable[[], str]:
    """A function that reads a line: at a terminal with editing and completion of commands, else from the pipe."""
    if not sys.stdin.isatty():
        return _piped
    with contextlib.suppress(ImportError):  # a Python may be built without it
        import readline

        names = sorted(re.findall("^/[a-z]+", HELP, re.MULTILINE))
        readline.set_completer_delims(" ")
        readline.set_completer(lambda text, i: [*(one for one in names if one.startswith(text)), None][i])
        readline.parse_and_bind("tab: complete")
    return lambda: input(PROMPT)


def _piped() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
