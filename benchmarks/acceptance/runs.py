"""Runs rows of a table over the prompts of one kind, and keeps how many tokens every forward gave."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from app.bench.meter import FailureCount
from app.config.fields import DrafterOptions
from app.reporting.record_file import RecordFile
from app.reporting.summaries import loop_start, summed
from benchmarks.support.path_scorer import ROOM, PathScorer, RecordedRows, blocks_of
from benchmarks.support.recording import RecordedText, TextArchive, TextJob
from benchmarks.support.replay import RecordedTarget
from engine.drafter.part import DrafterPart
from engine.drafter.settings import DrafterSettings
from engine.errors import ConfigError
from engine.events import RequestStats
from engine.loop import Engine
from engine.model.identity import model_hash
from engine.model.shard import ModelShard
from engine.request import DEFAULT_NODES, Request
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.drafter import drafter_part, read_checkpoint
from engine.target_model.info import Target, TargetInfo
from engine.target_model.loading import describe_target, load_parts, whole_range
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool
from speculators.settings import Settings


@dataclass(frozen=True, slots=True)
class AcceptanceRow:
    """A method with its settings."""

    method: str
    options: SpeculatorOptions = field(default_factory=SpeculatorOptions)
    max_nodes: int = DEFAULT_NODES
    drafter: str = ""  # directory of the trained drafter; "": there is none
    warm: bool = False  # prompts of a kind one by one, with state kept from each to the next


def with_settings(*settings: Settings) -> SpeculatorOptions:
    """Return default options with these settings."""
    return SpeculatorOptions().with_settings(*settings)


class RowRecord(msgspec.Struct, frozen=True):
    """A row's texts of one kind of prompt."""

    row: str
    kind: str
    digest: str  # of the row's settings and of the prompts
    step_tokens: list[list[int]]  # tokens of every forward, text by text
    loops_at: list[int | None]  # tokens of each text before it begins to repeat itself; None: it does not
    drafted: int  # nodes, without probes
    by_source: dict[str, dict[str, int]]
    failures: int  # exceptions of the method, which drafted nothing after them
    differ: int  # texts that are not the recorded ones

    @property
    def key(self) -> tuple[str, str]:
        return self.row, self.kind


class _RowCounts(NamedTuple):
    """What a ``RowRecord`` counts, in its order."""

    step_tokens: list[list[int]]
    loops_at: list[int | None]
    drafted: int
    by_source: dict[str, dict[str, int]]
    failures: int
    differ: int


class AcceptanceRun:
    """A model, its texts, and the rows that are measured on them.

    Args:
        model: checkpoint directory.
        jobs: of every kind of prompt.
        archive: folder of the recorded texts.
        drafting: of all trained drafters.
    """

    def __init__(
        self, model: Path, jobs: Mapping[str, Sequence[TextJob]], archive: Path, drafting: DrafterOptions
    ) -> None:
        self._model, self._jobs, self._drafting = model, jobs, drafting
        self._archive = TextArchive(archive, model_hash(model))
        self._load = lru_cache(maxsize=None)(self._load_parts)
        self.describe = lru_cache(maxsize=None)(self._describe)
        self.info = self.describe("")

    def _describe(self, drafter: str) -> TargetInfo:
        return describe_target(self._options(drafter), self._model)

    def _identity(self, drafter: str) -> str:
        info = self.describe(drafter).drafter
        return "" if info is None else info.identity

    def _options(self, drafter: str) -> TargetOptions:
        settings = DrafterSettings(drafter, self._drafting.layers, self._drafting.depth, self._drafting.beam)
        return TargetOptions(str(self._model), drafter=settings if drafter else None)

    def _load_parts(self, drafter: str) -> tuple[TargetInfo, ModelShard, DrafterPart]:
        info, options = self.describe(drafter), self._options(drafter)
        if not drafter:
            ((shard, part),) = load_parts(options, self._model, [whole_range(info.spec)], info)
            return info, shard, part
        assert options.drafter is not None
        _, shard, _ = self._load("")  # the weights are in memory once
        return info, shard, drafter_part(read_checkpoint(options.drafter, info.spec), options.drafter, shard, info)

    def target(self, n_slots: int, drafter: str = "") -> LocalTarget:
        """Return a target with a cache of so many tokens, on the weights of all with the same drafter."""
        info, shard, part = self._load(drafter)
        info = replace(info, n_blocks=-(-n_slots // info.block_size))
        return LocalTarget.of_shards(info, [shard], [part])

    def measure(
        self,
        kind: str,
        table: Mapping[str, AcceptanceRow],
        file: RecordFile[RowRecord],
        on_row: Callable[[str], object],
    ) -> None:
        """Run the rows of which the file has no record, or one of other prompts or settings."""
        jobs = self._jobs[kind]
        digests = {label: row_digest(row, jobs, self._identity(row.drafter)) for label, row in table.items()}
        done = {label for label in table if (old := file.by_key.get((label, kind))) and old.digest == digests[label]}
        if len(done) < len(table):
            if self._archive.missing(jobs):
                self._archive.record(self.target(len(jobs) * self._longest(kind)), jobs, kind)
            texts = self._archive.read(jobs)
            rows = RecordedRows(texts)
            slots = sum(blocks_of(rows.texts, self.info.block_size)) * self.info.block_size
            scorer = PathScorer(lambda: self.target(slots), rows, self.info.block_size)
        for label, row in table.items():
            on_row(f"{kind}: {label}")
            if label not in done:
                found = self._run(kind, row, texts, RecordedTarget(self.info, rows, scorer))
                file.append(RowRecord(label, kind, digests[label], *found))

    def _run(
        self, kind: str, row: AcceptanceRow, texts: Sequence[RecordedText], replayed: RecordedTarget
    ) -> _RowCounts:
        pool, jobs = SpeculatorPool(row.options), self._jobs[kind]
        needs = pool.needs(row.method)
        target: Target = replayed
        if needs.hidden_layer is not None or needs.heads or needs.drafter:  # states are not recorded
            target = self.target((1 if row.warm else len(jobs)) * self._longest(kind), row.drafter)
        with FailureCount() as failures:
            done = run_texts(target, pool, row, jobs)
            n_failures = failures.take()
        expected = [text.tokens[text.n_prompt :].tolist() for text in texts]
        stats = [stats for _, stats in done]
        return _RowCounts(
            [one.step_tokens for one in stats],
            [loop_start(text) for text in expected],
            sum(one.drafted_tokens for one in stats),
            summed({source: counts.named for source, counts in one.by_source.items()} for one in stats),
            n_failures,
            sum(text != recorded for (text, _), recorded in zip(done, expected, strict=True)),
        )

    def _longest(self, kind: str) -> int:
        """Return the slots of the longest sequence, with its trees, whole blocks."""
        size = self.info.block_size
        return -(-max(len(job.prompt) + job.max_tokens + ROOM for job in self._jobs[kind]) // size) * size


def run_texts(
    target: Target, pool: SpeculatorPool, row: AcceptanceRow, jobs: Sequence[TextJob]
) -> list[tuple[list[int], RequestStats]]:
    """Let a row write the texts of ``jobs``, all at once or, if it is warm, one by one; return them with statistics."""
    most = 1 if row.warm else len(jobs)
    engine = Engine(target, pool, SchedulerOptions(max_sequences=most, max_waiting=most, prefix_cache=False))
    todo, running = deque(range(len(jobs))), dict[int, int]()  # sequence -> number of its job
    texts: list[list[int]] = [[] for _ in jobs]
    found: dict[int, RequestStats] = {}
    while todo or engine.has_work:
        while todo and len(running) < most:  # a speculator reads a prompt when it is submitted
            number = todo.popleft()
            job = jobs[number]
            seq = engine.submit(Request([*job.prompt], job.params, row.method, row.max_nodes))
            running[seq] = number
            if isinstance(target, RecordedTarget):
                target.assign(seq, number)
        for seq, event in engine.step():
            texts[running[seq]] += event.token_ids
            if event.finish_reason is not None:
                if event.error:
                    raise ConfigError(f"the model cannot write a text: {event.error}")
                assert event.stats is not None
                found[running.pop(seq)] = event.stats
    return [(text, found[number]) for number, text in enumerate(texts)]


def row_digest(row: AcceptanceRow, jobs: Sequence[TextJob], drafter: str = "") -> str:
    """Return a digest of what decides a row's record: its settings, its prompts and its drafter's weights."""
    options = row.options
    inputs = (options.settings, options.layer, options.heads, options.draft_model, options.vocabulary is None)
    return hashlib.blake2b(
        repr((row.method, inputs, row.max_nodes, drafter, row.warm, jobs)).encode(), digest_size=12
    ).hexdigest()
