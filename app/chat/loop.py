"""A conversation in a terminal: lines are questions, lines with a slash are commands."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from app.chat.answers import ChatAnswer, ask
from app.chat.conversation import ChatConversation, number
from app.chat.screen import Screen, race_table
from app.load.client import Endpoint, open_session
from engine.errors import ConfigError

PROMPT = "> "
HELP = """\
/method X        draft with X, as in /method suffix+token-recycling; /method alone: the server's default
/seed N          the same noise for every answer; /seed alone: a new one for each
/temperature T   0 is greedy; /temperature alone: the server's default
/race A B [Q]    ask Q, or the last question again, by both methods with one seed; compare texts, forwards, seconds
/trace on|off    ask who drafted each token, and show it by colour
/new             begin anew
/help            this
/quit            end, as Ctrl-D does; Ctrl-C stops an answer"""
REFUSED = (400, 403)  # a server that knows no traces, or a key that may have none
MOST_SEED = (1 << 63) - 1


class Quit(Exception):  # noqa: N818 - no error
    """The user ends the program."""


@dataclass(slots=True)
class Chat:
    """Asks, shows, and obeys commands.

    Attributes:
        talk: the conversation.
        endpoint: of chats.
        tls: which https servers are trusted; None: those that the system trusts.
        screen: where answers are shown.
    """

    talk: ChatConversation
    endpoint: Endpoint
    tls: ssl.SSLContext | None
    screen: Screen

    def run(self, read: Callable[[], str]) -> None:
        """Until the end of the input; ``read`` gives the next line and raises EOFError at the end."""
        while True:
            try:
                line = read().strip()
                if line:
                    self.line(line)
            except KeyboardInterrupt:
                self.screen.line("\n(Ctrl-D or /quit ends)")
            except ConfigError as error:
                self.screen.line(f"[{error}]")
            except (EOFError, Quit):
                return

    def line(self, line: str) -> None:
        """Do what one line says.

        Raises:
            ConfigError: there is no such command, or its value is wrong.
            Quit: the user ends the program.
        """
        if not line.startswith("/"):
            self._ask(line)
            return
        name, _, rest = line[1:].partition(" ")
        command = self.commands().get(name)
        if command is None:
            raise ConfigError(f"/{name} is no command; /help lists them")
        command(rest.strip())

    def commands(self) -> Mapping[str, Callable[[str], None]]:
        """What is done for each command, with what stands behind its name."""
        return {
            "method": self._method,
            "seed": self._seed,
            "temperature": self._temperature,
            "race": self._race,
            "trace": self._trace,
            "new": self._new,
            "help": lambda _: self.screen.line(HELP),
            "quit": self._quit,
        }

    def _method(self, text: str) -> None:
        self.talk.method = text or None
        self.screen.line(f"(method: {text or 'the default of the server'})")

    def _seed(self, text: str) -> None:
        self.talk.seed = number(text, "/seed", 0, MOST_SEED, int) if text else None
        self.screen.line(f"(seed: {text or 'a new one for each answer'})")

    def _temperature(self, text: str) -> None:
        self.talk.temperature = number(text, "/temperature", 0, 2, float) if text else None
        self.screen.line(f"(temperature: {text or 'the default of the server'})")

    def _trace(self, text: str) -> None:
        if text not in ("on", "off"):
            raise ConfigError("/trace takes on or off")
        self.talk.trace = text == "on"
        self.screen.line(f"(trace: {text})")

    def _new(self, _: str) -> None:
        self.talk.messages.clear()
        self.screen.line("(a new conversation)")

    def _quit(self, _: str) -> None:
        raise Quit

    def _ask(self, question: str) -> None:
        answer, is_whole = self._answer(self.talk, question, self.talk.method, self.talk.next_seed())
        if answer.failure is None or not is_whole:
            self.talk.said(question, answer)

    def _race(self, text: str) -> None:
        """Each answer has a cache to itself, so that the second does not draft from the first."""
        first, second, question = (*text.split(maxsplit=2), "", "", "")[:3]
        if not second:
            raise ConfigError("/race takes two methods, as in /race autoregressive suffix, and perhaps a question")
        talk = self.talk
        if not question:
            last = talk.last_question()
            if last is None:
                raise ConfigError("/race needs a question, for none was asked yet")
            talk, question = talk.before_last(), last
        seed, answers = self.talk.next_seed(), []
        for method in (first, second):
            self.screen.line(f"--- {method}")
            answer, is_whole = self._answer(talk, question, method, seed, secrets.token_hex(8))
            answers.append(answer)
            if not is_whole:
                return
        self.screen.line(race_table((first, second), answers))
        if talk is self.talk and answers[0].failure is None:
            talk.said(question, answers[0])

    def _answer(
        self, talk: ChatConversation, question: str, method: str | None, seed: int, salt: str | None = None
    ) -> tuple[ChatAnswer, bool]:
        """(the answer, whether it was not stopped). A server that refuses traces is asked without."""
        while True:
            answer = ChatAnswer()
            stopped = False
            try:
                asyncio.run(self._stream(talk, question, method, seed, salt, answer))
            except KeyboardInterrupt:
                stopped = True
            failure = answer.failure
            if failure is not None and failure.status in REFUSED and "trace" in failure.message and talk.trace:
                self.screen.line(f"(without a trace: {failure.message})")
                self.talk.trace = talk.trace = False
                continue
            self.screen.ended(answer, seed, stopped)
            return answer, not stopped

    async def _stream(
        self, talk: ChatConversation, question: str, method: str | None, seed: int, salt: str | None, answer: ChatAnswer
    ) -> None:
        async with open_session(self.tls) as session:
            await ask(session, self.endpoint, talk.body(question, method, seed, salt), answer, self.screen.piece)


def reader(commands: Collection[str]) -> Callable[[], str]:
    """Reads lines with line editing at a terminal, where Tab completes ``commands``, and as they are from a pipe."""
    if not sys.stdin.isatty():
        return _piped
    with contextlib.suppress(ImportError):  # a Python may be built without it
        import readline

        names = sorted(f"/{name}" for name in commands)
        readline.set_completer_delims(" ")
        readline.set_completer(lambda text, i: [*(one for one in names if one.startswith(text)), None][i])
        readline.parse_and_bind("tab: complete")
    return lambda: input(PROMPT)


def _piped() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
