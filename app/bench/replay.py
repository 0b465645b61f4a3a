"""``spectra bench --replay``: what speculation would have accepted of recorded answers, without a model.

`ReplayTarget` replaces the model; engine, scheduler and speculators are those of any run. Only methods that read
nothing but text can be replayed. Records have no times: the cost of a step depends on the model.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.bench.meter import MeteredEngine
from app.bench.records import BenchSetting, TurnRecord
from app.bench.schedule import BenchSchedule, Turn
from app.inputs.recordings import RecordedTurn
from app.reporting.summaries import grouped
from engine.errors import UnknownMethodError
from engine.model.spec import ModelSpec
from engine.protocol import Needs
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.step import Step, StepResult, Work, WorkResult
from engine.target_model.info import MAX_TREE, TargetInfo
from engine.verify.rules import walk_text
from speculators.pool import SpeculatorPool

BLOCK = 64  # tokens; the scheduler counts blocks, which hold nothing here

REFUSED = {
    "draft-model": "it drafts with a small model's weights",
    "pld-plus-h": "it reads hidden states of the target",
    "pld-plus-a": "it reads attention of the target",
    "auto": "it weighs drafts against the time a model's step takes",
}
"""Methods that need more than text although their ``needs`` do not say so, and the reason."""


@dataclass(frozen=True, slots=True)
class _ReplayedSequence:
    """State of one sequence."""

    n_prompt: int  # tokens
    answer: Sequence[int]


class ReplayTarget:
    """A target without a model: it commits the recorded answer, whatever is drafted.

    Implements ``engine.target_model.info.Target``; ``engine.verify.rules.walk_text`` verifies. Append to ``answers``
    before you submit a request; sequences take them in the order in which they start.

    Args:
        longest: most tokens of a prompt and its answer together.
    """

    def __init__(self, vocab_size: int, longest: int) -> None:
        # It has no layers, heads or states: of its sizes only the vocabulary and the longest text are read.
        spec = ModelSpec("replay", 0, 0, 1, 0, 0, vocab_size, longest, (), (), "float32", None)
        n_blocks = -(-(longest + MAX_TREE + 1) // BLOCK)
        self.info = TargetInfo(spec, n_blocks, BLOCK, longest)
        self.answers: deque[Sequence[int]] = deque()
        self._live: dict[int, _ReplayedSequence] = {}

    def step(self, step: Step) -> StepResult:
        began = time.perf_counter()
        for seq in step.ends:
            self._live.pop(seq, None)
        for start in step.starts:
            self._live[start.seq] = _ReplayedSequence(start.n_prompt, self.answers.popleft())
        results = [self._answer(work) for work in step.work]
        return StepResult(step.step_id, results, time.perf_counter() - began)

    def _answer(self, work: Work) -> WorkResult:
        if not work.draw:
            return WorkResult(work.seq)
        sequence = self._live[work.seq]
        written = work.n_cached + len(work.tokens) - sequence.n_prompt
        future = sequence.answer[written : written + work.max_new]
        if work.tree is None:
            return WorkResult(work.seq, list(future[:1]))
        tokens, accepted = walk_text(work.tree, future)
        return WorkResult(work.seq, tokens, accepted)


class Replay(BenchSchedule):
    """Replays recorded answers; lessons are those of the history.

    Args:
        history_passes: over the history before a warm setting is measured.
    """

    def __init__(
        self,
        pool: SpeculatorPool,
        methods: Sequence[str],
        settings: Sequence[BenchSetting],
        history: Sequence[RecordedTurn],
        test: Sequence[RecordedTurn],
        max_nodes: int,
        history_passes: int,
        vocab_size: int,
    ) -> None:
        units = [[(one.index, one.turn) for one in turns] for turns in grouped(test, lambda one: one.index).values()]
        lesson = [(-1 - one.index, one.turn) for one in history]
        super().__init__(methods, settings, 1, units, [lesson] * history_passes)
        self._recorded = {(one.index, one.turn): one for one in test} | dict(zip(lesson, history, strict=True))
        self._max_nodes = max_nodes
        longest = max(len(turn.prompt) + len(turn.answer) for turn in (*history, *test))
        self._target = ReplayTarget(vocab_size, longest)
        options = SchedulerOptions(max_sequences=1, prefix_cache=False)
        self._engine = MeteredEngine(self._target, pool, options, self.scope)

    def records(self, setting: BenchSetting, method: str, repeat: int, turns: Sequence[Turn]) -> Iterator[TurnRecord]:
        for turn in (self._recorded[one] for one in turns):
            self._target.answers.append(turn.answer)
            params = SamplingParams(max_tokens=len(turn.answer))
            request = Request(turn.prompt, params, method, self._max_nodes, prediction=list(turn.prediction))
            done = self._engine.complete(request)
            assert done.token_ids == turn.answer, "the replay committed other tokens than were recorded"
            yield TurnRecord(
                method=method,
                index=turn.index,
                turn=turn.turn,
                question_id=turn.question_id,
                category=turn.category,
                prompt_tokens=done.stats.prompt_tokens,
                token_ids=done.token_ids,
                step_tokens=done.stats.step_tokens,
                step_nodes=self._engine.finished.popleft().step_nodes,
                warm=setting.warm,
                finish_reason=done.finish_reason,
                by_source={name: counts.named for name, counts in done.stats.by_source.items()},
            )


def check_methods(methods: Sequence[str], pool: SpeculatorPool) -> None:
    """Raise UnknownMethodError if a method is unknown, lacks its corpus, or needs more than text."""
    for method in methods:
        for part in (part.strip() for part in method.split("+")):
            if part in REFUSED or pool.needs(part) != Needs():
                reason = REFUSED.get(part, "it reads outputs of the target in addition to tokens")
                raise UnknownMethodError(f"method {part!r} cannot be replayed from text alone: {reason}", "method")
        pool.needs(method)
