"""Runs methods side by side on a model and records their outputs and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace
from transformers import PreTrainedTokenizerFast

from app.bench.meter import FailureCount, MeteredEngine, SequenceTimes
from app.bench.records import BenchSetting, TurnRecord
from app.bench.schedule import BenchSchedule, Turn
from app.inputs.prompts import Conversation, Question, encode_chat, encode_raw
from app.offline.generator import GeneratedAnswer, Generator
from app.reporting.record_file import RecordFile
from engine.errors import ConfigError
from engine.request import DEFAULT_NODES
from engine.sampling.params import SamplingParams
from engine.scheduling.request_validation import check_needs
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.info import Target
from speculators.pool import SpeculatorPool

WARM_UP_TOKENS = 16
UNIT_BATCHES = 8  # batches of questions that a method answers in a row, at batch sizes above 1


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to measure."""

    methods: Sequence[str]
    settings: Sequence[BenchSetting]
    questions: Sequence[Question]
    params: SamplingParams  # each setting replaces the temperature and, if it samples, adds the repeat to the seed
    repeats: int = 1
    batch_size: int = 1
    max_nodes: int = DEFAULT_NODES
    raw: bool = False
    warm_passes: int = 0  # passes over the questions before the measured one, in warm settings

    def units(self) -> list[list[Turn]]:
        """Turns of questions that a method answers in a row; few, so that all methods meet the same machine speed."""
        size = 1 if self.batch_size == 1 else UNIT_BATCHES * self.batch_size
        turns = [[(q, t) for t in range(1 if self.raw else len(one.turns))] for q, one in enumerate(self.questions)]
        return [list(chain(*turns[start : start + size])) for start in range(0, len(turns), size)]


class BenchRunner(BenchSchedule):
    """Measures a plan on one engine.

    Args:
        pools: speculators of cold (False) and warm (True) settings, as far as the plan has such settings.
    """

    def __init__(
        self, target: Target, tokenizer: PreTrainedTokenizerFast, pools: Mapping[bool, SpeculatorPool], plan: BenchPlan
    ) -> None:
        units = plan.units()
        super().__init__(plan.methods, plan.settings, plan.repeats, units, [list(chain(*units))] * plan.warm_passes)
        self._plan = plan
        self._pools = pools
        self._tokenizer = tokenizer
        size = max(64, plan.batch_size)
        # All methods run the same prompts: with a prefix cache only the first one would pay for the prefill.
        options = SchedulerOptions(max_sequences=size, max_waiting=size, prefix_cache=False)
        self._engine = MeteredEngine(target, pools[plan.settings[0].warm], options, self.scope)
        self._failures = FailureCount()

    def check(self) -> None:
        """Raise SpectraError if a method is unknown or lacks an artefact, or a question is longer than the context."""
        info, params = self._engine.target.info, self._plan.params
        for pool in self._pools.values():
            for method in self._plan.methods:
                check_needs(pool.needs(method), info.spec)
        for i, question in enumerate(self._plan.questions):
            if self._plan.raw:
                n = len(encode_raw(self._tokenizer, question.text))
            else:
                n = len(encode_chat(self._tokenizer, Conversation(question).ask()))
            if n + params.max_tokens > info.max_model_len:
                raise ConfigError(
                    f"question {i} ({question.question_id}) has {n} tokens: with --max-tokens {params.max_tokens} "
                    f"they exceed the context of {info.max_model_len}"
                )

    def run(self, file: RecordFile[TurnRecord], done: Callable[[], object]) -> None:
        with self._failures:
            if self.work(file):
                self._warm_up()
            super().run(file, done)

    def records(self, setting: BenchSetting, method: str, repeat: int, turns: Sequence[Turn]) -> Iterator[TurnRecord]:
        questions = list(dict.fromkeys(question for question, _ in turns))
        self._engine.pool = self._pools[setting.warm]  # no sequence is alive between two calls
        params = replace(self._plan.params, temperature=setting.temperature)
        if setting.temperature > 0:
            params = replace(params, seed=(params.seed + repeat) % 2**64)
        asked = [self._plan.questions[q] for q in questions]
        for answer, times in self._answers(asked, params, method):
            question = asked[answer.index]
            yield TurnRecord(
                method=method,
                index=questions[answer.index],
                prompt_tokens=answer.stats.prompt_tokens,
                token_ids=answer.token_ids,
                step_tokens=answer.stats.step_tokens,
                temperature=setting.temperature,
                warm=setting.warm,
                repeat=repeat,
                turn=answer.turn,
                question_id=question.question_id,
                category=question.category,
                finish_reason=answer.finish_reason,
                step_nodes=times.step_nodes,
                step_seconds=[round(value, 6) for value in times.step_seconds],
                target_seconds=[round(value, 6) for value in times.target_seconds],
                seconds=round(times.seconds, 6),
                by_source={name: counts.named for name, counts in answer.stats.by_source.items()},
                failures=self._failures.take(),
            )

    def _warm_up(self) -> None:
        """Let every method make some steps that are not counted: the first ones touch memory and load code."""
        short = replace(self._plan.params, max_tokens=min(WARM_UP_TOKENS, self._plan.params.max_tokens))
        first = [Question(self._plan.questions[0].turns[:1])]
        for pool in self._pools.values():
            self._engine.pool = pool
            for method in self._plan.methods:
                for _ in self._answers(first, short, method):
                    pass
        self._failures.take()

    def _answers(
        self, questions: Sequence[Question], params: SamplingParams, method: str
    ) -> Iterator[tuple[GeneratedAnswer, SequenceTimes]]:
        plan = self._plan
        generator = Generator(self._engine, self._tokenizer, params, method, plan.max_nodes, plan.raw)
        for answer in generator.answers(questions, plan.batch_size):
            yield answer, self._engine.finished.popleft()
