"""The target's answers as JSON lines, appended one by one: an interrupted run goes on behind the last."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from engine.errors import ConfigError

Key = tuple[str, int, int]


class TrainingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One answered turn; all ids are the target's."""

    question: str  # ``source_of`` all that is asked in the conversation
    source_hash: str  # ``source_of`` its first question
    sample: int  # which of several answers to one question
    turn: int
    temperature: float
    prompt: list[int]
    answer: list[int]  # a terminating EOS included

    @property
    def key(self) -> Key:
        """No two answers of a file have the same."""
        return self.question, self.sample, self.turn


class _Head(msgspec.Struct, frozen=True):
    """The file's first line."""

    settings: dict[str, Any]


class AnswerFile:
    """A context: the answers that are known, and a file open for more.

    Args:
        path: of the file, made if missing; what a kill left of a last line is dropped.
        settings: what decides answers beside the questions, as JSON values.

    Raises:
        ConfigError: the file is none of answers, or holds those of other settings.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self._settings = path, settings
        self.answers: dict[Key, TrainingAnswer] = {}

    def __enter__(self) -> AnswerFile:
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        head, *lines = whole.splitlines() or [b""]
        if head:
            self._check(head)
        for line in lines:
            answer = self._decoded(line, TrainingAnswer)
            self.answers[answer.key] = answer
        self._file = self.path.open("ab")
        self._file.truncate(len(whole))
        if not head:
            self._write(_Head(self._settings))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, answer: TrainingAnswer) -> None:
        """Keep an answer, on disk too."""
        self.answers[answer.key] = answer
        self._write(answer)

    def _write(self, line: _Head | TrainingAnswer) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()

    def _check(self, head: bytes) -> None:
        known = self._decoded(head, _Head).settings
        for name, value in self._settings.items():
            if known.get(name) != value:
                raise ConfigError(
                    f"{self.path} holds answers written with {name} {known.get(name)!r}, not {value!r}: give the same, "
                    "or another --work folder"
                )

    def _decoded(self, line: bytes, kind: Any) -> Any:
        try:
            return msgspec.json.decode(line, type=kind)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self.path} holds something else than answers: {error}") from error
