"""Runs methods side by side on a model and records their outputs and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from msgspec.structs import replace
from transformers import PreTrainedTokenizerFast

from app.bench.meter import FailureCount, MeteredEngine, SequenceTimes
from app.bench.records import BenchSetting, Key, RecordFile, TurnRecord, source_counts
from app.inputs.prompts import Conversation, Question, encode_chat, encode_raw
from app.offline.generator import GeneratedAnswer, Generator
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

    def turns(self, question: int) -> int:
        """Turns of a question that are run."""
        return 1 if self.raw else len(self.questions[question].turns)

    def units(self) -> list[range]:
        """Questions that a method answers in a row; few, so that all methods meet the same speed of the machine."""
        size = 1 if self.batch_size == 1 else UNIT_BATCHES * self.batch_size
        n = len(self.questions)
        return [range(start, min(n, start + size)) for start in range(0, n, size)]

    def keys(self, setting: BenchSetting, method: str, repeat: int, questions: range) -> list[Key]:
        """Keys of the records of some questions."""
        return [Key(setting, method, repeat, q, turn) for q in questions for turn in range(self.turns(q))]


class BenchRunner:
    """Measures a plan on one engine.

    Methods take turns question by question (unit by unit in batches), each round in another order, so that changes of
    the machine's speed meet all methods alike. In a cold setting every turn has a scope of its own, so that
    speculators know nothing of earlier turns; in a warm setting all turns of a method and repeat share a scope.

    Args:
        pools: speculators of cold (False) and warm (True) settings, as far as the plan has such settings.
    """

    def __init__(
        self, target: Target, tokenizer: PreTrainedTokenizerFast, pools: Mapping[bool, SpeculatorPool], plan: BenchPlan
    ) -> None:
        self._plan = plan
        self._pools = pools
        self._tokenizer = tokenizer
        self._fresh = (f"cold {i}" for i in count())
        self._shared: str | None = None  # the scope of warm turns
        size = max(64, plan.batch_size)
        # All methods run the same prompts: with a prefix cache only the first one would pay for the prefill.
        options = SchedulerOptions(max_sequences=size, max_waiting=size, prefix_cache=False)
        self._engine = MeteredEngine(target, pools[plan.settings[0].warm], options, self._scope)
        self._failures = FailureCount()

    def check(self) -> None:
        """Check everything that would stop the run halfway.

        Raises:
            UnknownMethodError: a method is unknown or not available yet.
            ConfigError: a method lacks an artefact it needs, or a question is longer than the model's context.
        """
        info, params = self._engine.target.info, self._plan.params
        for pool in self._pools.values():
            for method in self._plan.methods:
                check_needs(pool.needs(method), info.spec)
        for i, question in enumerate(self._plan.questions):
            n = len(first_prompt(self._tokenizer, question, self._plan.raw))
            if n + params.max_tokens > info.max_model_len:
                raise ConfigError(
                    f"question {i} ({question.question_id}) has {n} tokens: with --max-tokens {params.max_tokens} "
                    f"they exceed the context of {info.max_model_len}"
                )

    def work(self, file: RecordFile) -> int:
        """Turns still to be run, warming passes included; forgets incomplete warm passes, which cannot be continued."""
        plan, todo = self._plan, 0
        for repeat, setting, method in self._passes():
            keys = plan.keys(setting, method, repeat, range(len(plan.questions)))
            missing = [key for key in keys if key not in file]
            if setting.warm and missing:  # the speculator's state is gone: the pass begins again
                file.forget(keys)
                todo += (1 + plan.warm_passes) * len(keys)
            else:
                todo += sum(plan.turns(q) for q in {key.question for key in missing})
        return todo

    def run(self, file: RecordFile, done: Callable[[], object]) -> None:
        """Measure the turns that ``file`` does not hold yet.

        Args:
            file: gets a record of every turn.
            done: called after every turn.
        """
        with self._failures:
            if self.work(file):
                self._warm_up()
            self._measure(file, done)

    def _measure(self, file: RecordFile, done: Callable[[], object]) -> None:
        plan = self._plan
        for repeat in range(plan.repeats):
            for setting in plan.settings:
                if setting.warm:
                    self._teach(file, setting, repeat, done)
                for i, unit in enumerate(plan.units()):
                    for method in rotated(plan.methods, i + repeat):
                        for record in self._missing(file, setting, method, repeat, unit):
                            file.append(record)
                            done()

    def _passes(self) -> Iterator[tuple[int, BenchSetting, str]]:
        for repeat in range(self._plan.repeats):
            for setting in self._plan.settings:
                for method in self._plan.methods:
                    yield repeat, setting, method

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

    def _teach(self, file: RecordFile, setting: BenchSetting, repeat: int, done: Callable[[], object]) -> None:
        every = range(len(self._plan.questions))
        for _ in range(self._plan.warm_passes):
            for method in self._plan.methods:
                if any(key not in file for key in self._plan.keys(setting, method, repeat, every)):
                    for _ in self._records(setting, method, repeat, every):
                        done()

    def _missing(
        self, file: RecordFile, setting: BenchSetting, method: str, repeat: int, unit: range
    ) -> Iterator[TurnRecord]:
        """Records of the questions in ``unit`` that lack one; a question's turns are run together."""
        lacking = {k.question for k in self._plan.keys(setting, method, repeat, unit) if k not in file}
        return self._records(setting, method, repeat, sorted(lacking))

    def _records(
        self, setting: BenchSetting, method: str, repeat: int, questions: Sequence[int]
    ) -> Iterator[TurnRecord]:
        self._engine.pool = self._pools[setting.warm]  # no sequence is alive between two calls
        self._shared = f"{setting.label}, {method}, {repeat}" if setting.warm else None
        params = replace(self._plan.params, temperature=setting.temperature)
        if setting.temperature > 0:
            params = replace(params, seed=(params.seed + repeat) % 2**64)
        asked = [self._plan.questions[q] for q in questions]
        for answer, times in self._answers(asked, params, method):
            record = _record(setting, method, repeat, questions[answer.index], asked[answer.index], answer, times)
            yield replace(record, failures=self._failures.take())

    def _answers(
        self, questions: Sequence[Question], params: SamplingParams, method: str
    ) -> Iterator[tuple[GeneratedAnswer, SequenceTimes]]:
        plan = self._plan
        generator = Generator(self._engine, self._tokenizer, params, method, plan.max_nodes, plan.raw)
        for answer in generator.answers(questions, plan.batch_size):
            yield answer, self._engine.finished.popleft()

    def _scope(self) -> str:
        return next(self._fresh) if self._shared is None else self._shared


def first_prompt(tokenizer: PreTrainedTokenizerFast, question: Question, raw: bool) -> list[int]:
    """Token ids of a question's first turn, as ``Generator`` encodes it."""
    return encode_raw(tokenizer, question.text) if raw else encode_chat(tokenizer, Conversation(question).ask())


def rotated(methods: Sequence[str], by: int) -> list[str]:
    """The methods, cyclically shifted ``by`` places."""
    by %= len(methods)
    return [*methods[by:], *methods[:by]]


def _record(
    setting: BenchSetting,
    method: str,
    repeat: int,
    index: int,
    question: Question,
    answer: GeneratedAnswer,
    times: SequenceTimes,
) -> TurnRecord:
    def rounded(seconds: Sequence[float]) -> list[float]:
        return [round(value, 6) for value in seconds]

    return TurnRecord(
        method=method,
        index=index,
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
        step_seconds=rounded(times.step_seconds),
        target_seconds=rounded(times.target_seconds),
        seconds=round(times.seconds, 6),
        by_source=source_counts(answer.stats),
    )
