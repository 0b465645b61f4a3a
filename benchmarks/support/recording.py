"""Texts that the real model writes once, with its best ids after every token, kept in files for replay."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from app.reporting.report import bar
from engine.errors import ConfigError
from engine.loop import Engine
from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.info import Target
from engine.top_ids import TopIds
from engine.tree import FloatArray, IntArray
from speculators.pool import SpeculatorPool

TOP_K = 32  # ids kept after every token: the most that any method reads back by default
BATCH = 32  # texts that are written together


class TextJob(NamedTuple):
    """Everything that determines a text of a given model."""

    prompt: tuple[int, ...]
    seed: int
    temperature: float
    max_tokens: int
    stop_ids: tuple[int, ...]

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed, stop_ids=self.stop_ids
        )

    def file_name(self, model: str) -> str:
        """Return the name of the text's file for the model with hash ``model``."""
        return hashlib.blake2b(repr((model, *self)).encode(), digest_size=12).hexdigest() + ".npz"


@dataclass(slots=True)
class RecordedText:
    """A text and the target's best ids after its tokens.

    The target never scores the last token, and the engine drops the answer to the last step, so ``ids`` has up to two
    rows fewer than there are tokens.
    """

    n_prompt: int
    tokens: IntArray  # [n] int32: prompt and text
    ids: IntArray  # [n_rows, TOP_K] int32, best first
    logprobs: FloatArray  # [n_rows, TOP_K] fp32, raw

    def write(self, path: Path) -> None:
        """Write a file, whole or not at all."""
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez(file, n_prompt=self.n_prompt, tokens=self.tokens, ids=self.ids, logprobs=self.logprobs)
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> RecordedText:
        with np.load(path) as file:
            return cls(int(file["n_prompt"]), file["tokens"], file["ids"], file["logprobs"])


@dataclass(slots=True)
class _Rows:
    """Best ids of one request so far."""

    ids: list[IntArray] = field(default_factory=list)
    logprobs: list[FloatArray] = field(default_factory=list)


class AnswerRecorder(Speculator):
    """Drafts nothing and keeps the target's best ids after every token."""

    name = "answer-recorder"
    needs = Needs(node_top_k=TOP_K, prompt_top_k=TOP_K, top_logprobs=True)

    def __init__(self) -> None:
        self._rows: dict[int, _Rows] = {}

    def begin(self, view: RequestView) -> None:
        self._rows[view.request_id] = _Rows()

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        return []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        rows, top = self._rows[view.request_id], TopIds.of(outcome.top_ids)
        if outcome.prompt_top_ids is not None and outcome.prompt_top_logprobs is not None:
            rows.ids.append(outcome.prompt_top_ids)
            rows.logprobs.append(outcome.prompt_top_logprobs)
        elif top.logprobs is not None:
            rows.ids.append(top.ids)
            rows.logprobs.append(top.logprobs)

    def take(self, request_id: int) -> tuple[IntArray, FloatArray]:
        """Return and forget the rows of a request: ids and log-probabilities."""
        rows = self._rows.pop(request_id)
        return np.concatenate(rows.ids), np.concatenate(rows.logprobs)


class TextArchive:
    """A folder of recorded texts.

    Args:
        folder: created if missing; files of other models and jobs may be in it.
        model: hash of the model.
    """

    def __init__(self, folder: Path, model: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._model = folder, model

    def missing(self, jobs: Iterable[TextJob]) -> list[TextJob]:
        """Return the jobs without a file, each once."""
        return [job for job in dict.fromkeys(jobs) if not self._path(job).exists()]

    def read(self, jobs: Iterable[TextJob]) -> list[RecordedText]:
        return [RecordedText.read(self._path(job)) for job in jobs]

    def record(self, target: Target, jobs: Sequence[TextJob], label: str = "") -> None:
        """Let the target write every text that is missing, ``BATCH`` at a time and without drafts."""
        todo = self.missing(jobs)
        if not todo:
            return
        recorder = AnswerRecorder()
        pool = SpeculatorPool(extra={recorder.name: lambda _: recorder})
        options = SchedulerOptions(max_sequences=BATCH, max_waiting=len(todo))
        engine = Engine(target, pool, options)
        running = {engine.submit(Request([*job.prompt], job.params, recorder.name)): job for job in todo}
        written: dict[int, list[int]] = {seq: [] for seq in running}
        with bar(None, len(todo), f"text {label}") as shown:
            while engine.has_work:
                for seq, event in engine.step():
                    written[seq] += event.token_ids
                    if event.finish_reason is not None:
                        if event.error:
                            raise ConfigError(f"the model cannot write a text of {label}: {event.error}")
                        self._keep(running[seq], written.pop(seq), *recorder.take(seq))
                        shown.update()

    def _keep(self, job: TextJob, text: list[int], ids: IntArray, logprobs: FloatArray) -> None:
        tokens = np.array([*job.prompt, *text], np.int32)
        RecordedText(len(job.prompt), tokens, ids.astype(np.int32), logprobs).write(self._path(job))

    def _path(self, job: TextJob) -> Path:
        return self._folder / job.file_name(self._model)
