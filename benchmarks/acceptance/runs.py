"""Runs rows of a table over the prompts of one kind, and keeps how many tokens every forward gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec

from app.bench.meter import FailureCount
from app.reporting.record_file import RecordFile
from app.reporting.summaries import loop_start
from benchmarks.acceptance.row import AcceptanceRow
from benchmarks.support.computed_replay import ComputedTarget, PathScorer, blocks_of
from benchmarks.support.recording import RecordedText, TextArchive, TextJob
from benchmarks.support.replay import RecordedRows, ReplayedTarget
from engine.drafter.part import DrafterPart
from engine.drafter.settings import DrafterSettings
from engine.errors import ConfigError
from engine.events import RequestStats
from engine.loop import Engine
from engine.model.identity import model_hash
from engine.model.shard import ModelShard
from engine.request import Request
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.info import Target
from engine.target_model.loading import describe_target, load_parts, whole_range
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.pool import SpeculatorPool

ROOM = 192  # slots of a sequence's cache in addition to its text, for trees


class RowRecord(msgspec.Struct, frozen=True):
    """A row's texts of one kind of prompt."""

    row: str
    kind: str
    step_tokens: list[list[int]]  # tokens of every forward, text by text
    loops_at: list[int | None]  # tokens of each text before it begins to repeat itself; None: it does not
    drafted: int  # nodes
    by_source: dict[str, dict[str, int]]
    failures: int  # exceptions of the method, which drafted nothing after them
    differ: int  # texts that are not the recorded ones

    @property
    def key(self) -> tuple[str, str]:
        return self.row, self.kind


class AcceptanceRun:
    """A model, its texts, and the rows that are measured on them.

    Args:
        model: checkpoint directory.
        jobs: of every kind of prompt.
        archive: folder of the recorded texts.
        drafter: trained for the model; None: there is none.
    """

    def __init__(
        self, model: Path, jobs: Mapping[str, Sequence[TextJob]], archive: Path, drafter: DrafterSettings | None
    ) -> None:
        self._model, self._jobs = model, jobs
        self._options = TargetOptions(str(model), drafter=drafter)
        self.info = describe_target(self._options, model)
        self._archive = TextArchive(archive, model_hash(model))

    @cached_property
    def _parts(self) -> tuple[ModelShard, DrafterPart]:
        (parts,) = load_parts(self._options, self._model, [whole_range(self.info.spec)], self.info)
        return parts

    def target(self, n_slots: int) -> LocalTarget:
        """Return a target with a cache of so many tokens, on the weights of all."""
        shard, drafter = self._parts
        info = replace(self.info, n_blocks=-(-n_slots // self.info.block_size))
        return LocalTarget(info, [shard], [drafter])

    def texts(self, kind: str) -> list[RecordedText]:
        """Return the texts of a kind that was measured."""
        return self._archive.read(self._jobs[kind])

    def measure(
        self,
        kind: str,
        table: Mapping[str, AcceptanceRow],
        file: RecordFile[RowRecord],
        on_row: Callable[[str], object],
    ) -> None:
        """Run the rows whose record the file lacks."""
        todo = {label: row for label, row in table.items() if (label, kind) not in file.by_key}
        if not todo:
            return
        jobs = self._jobs[kind]
        self._archive.record(self.target(len(jobs) * self._longest(kind)), jobs, kind)
        texts = self._archive.read(jobs)
        rows = RecordedRows(texts, self.info.spec.vocab_size)
        slots = sum(blocks_of(rows.texts, self.info.block_size)) * self.info.block_size
        scorer = PathScorer(self.target(slots), rows)
        for label, row in todo.items():
            on_row(f"{kind}: {label}")
            file.append(self._record(label, kind, row, texts, rows, scorer))

    def _record(
        self,
        label: str,
        kind: str,
        row: AcceptanceRow,
        texts: Sequence[RecordedText],
        rows: RecordedRows,
        scorer: PathScorer,
    ) -> RowRecord:
        pool, jobs = SpeculatorPool(row.options), self._jobs[kind]
        needs = pool.needs(row.method)
        target: Target
        if needs.hidden_layer is not None or needs.heads or needs.drafter:  # states are not recorded
            target = self.target((1 if row.warm else len(jobs)) * self._longest(kind))
        else:
            target = ComputedTarget(self.info, rows, scorer)
        with FailureCount() as failures:
            done = run_texts(target, pool, row, jobs)
            n_failures = failures.take()
        expected = [text.tokens[text.n_prompt :].tolist() for text in texts]
        stats = [stats for _, stats in done]
        counts: dict[str, dict[str, int]] = {}
        for source, counted in ((s, c) for one in stats for s, c in one.by_source.items()):
            sums = counts.setdefault(source, {"drafted": 0, "accepted": 0})
            sums["drafted"] += counted.drafted
            sums["accepted"] += counted.accepted
        return RowRecord(
            label,
            kind,
            [one.step_tokens for one in stats],
            [loop_start(text) for text in expected],
            sum(one.drafted_tokens for one in stats),
            counts,
            n_failures,
            sum(text != wanted for (text, _), wanted in zip(done, expected, strict=True)),
        )

    def _longest(self, kind: str) -> int:
        """Return the slots of the longest sequence, with its trees, whole blocks."""
        size = self.info.block_size
        return -(-max(len(job.prompt) + job.max_tokens + ROOM for job in self._jobs[kind]) // size) * size


def run_texts(
    target: Target, pool: SpeculatorPool, row: AcceptanceRow, jobs: Sequence[TextJob]
) -> list[tuple[list[int], RequestStats]]:
    """Let a row write the texts of ``jobs``, all at once or, if it is warm, one by one; return them with statistics."""
    n = 1 if row.warm else len(jobs)
    engine = Engine(target, pool, SchedulerOptions(max_sequences=n, max_waiting=len(jobs), prefix_cache=False))
    numbers: dict[int, int] = {}
    for number, job in enumerate(jobs):
        seq = engine.submit(Request([*job.prompt], job.params, row.method, row.max_nodes))
        numbers[seq] = number
        if isinstance(target, ReplayedTarget):
            target.assign(seq, number)
    texts: list[list[int]] = [[] for _ in jobs]
    found: dict[int, RequestStats] = {}
    while engine.has_work:
        for seq, event in engine.step():
            texts[numbers[seq]] += event.token_ids
            if event.finish_reason is not None:
                if event.error:
                    raise ConfigError(f"the model cannot write a text: {event.error}")
                assert event.stats is not None
                found[numbers[seq]] = event.stats
    return [(text, found[number]) for number, text in enumerate(texts)]
