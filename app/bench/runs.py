"""``spectra bench`` on a model: runs methods side by side, and records their outputs, times and settings."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec.structs import replace
from transformers import PreTrainedTokenizerFast

from app.bench.meter import FailureCount, MeteredEngine, SequenceTimes
from app.bench.records import WARM, BenchSetting, TurnRecord, digest, fingerprint
from app.bench.schedule import BenchSchedule, Turn, recorded
from app.config.serve import ServeConfig
from app.inputs.libraries import LibraryAt
from app.inputs.models import model_path
from app.inputs.prompts import Conversation, Question, encode_chat, encode_raw
from app.inputs.tokenizers import load_tokenizer
from app.offline.flags import n_threads
from app.offline.generator import GeneratedAnswer, Generator
from app.offline.setup import load_target, sampling, speculator_options
from app.reporting.record_file import RecordFile
from app.version import VERSION
from engine.errors import ConfigError
from engine.model.identity import model_hash
from engine.request import DEFAULT_NODES
from engine.sampling.params import SamplingParams
from engine.scheduling.request_validation import check_needs
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.info import Target
from engine.target_model.numerics import resolve_dtype
from speculators.pool import SpeculatorPool
from speculators.registry import warmed

WARM_UP_TOKENS = 16
UNIT_BATCHES = 8  # batches of questions that a method answers in a row, at batch sizes above 1
UNRECORDED = {
    *("command", "run", "out", "restart", "model", "dtype", "prompts", "limit", "per_category", "kv_gib"),
    "retrieval_namespace",
}
"""Flags that do not change records, or that the settings hold in another form: questions, dtype, snapshot."""


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


def measure(
    arguments: argparse.Namespace, config: ServeConfig, questions: list[Question]
) -> tuple[list[TurnRecord], dict[str, Any]]:
    """Run the methods on ``questions``; returns all records and the keys that the run adds to the JSON document.

    Raises ConfigError if a method or question cannot be run, or the folder holds records of other settings.
    """
    path = model_path(config.model, config.revision)
    target = load_target(config)
    options = speculator_options(config, arguments.methods, path, target)
    plan = BenchPlan(
        methods=arguments.methods,
        settings=[BenchSetting(t, state == WARM) for t in arguments.temperatures for state in arguments.states],
        questions=questions,
        params=sampling(arguments, arguments.temperatures[0], target),
        repeats=arguments.repeats,
        batch_size=arguments.batch_size,
        max_nodes=config.draft_nodes,
        raw=arguments.raw,
        warm_passes=arguments.warm_passes,
    )
    states = {setting.warm for setting in plan.settings}
    pools = {is_warm: SpeculatorPool(warmed(options) if is_warm else options) for is_warm in states}
    bench = BenchRunner(target, load_tokenizer(path), pools, plan)
    bench.check()
    dtype = resolve_dtype(config.dtype, target.info.spec, config.device)
    settings = run_settings(arguments, config, path, dtype, questions)
    if isinstance(options.retrieval, LibraryAt):  # the label names the snapshot; the flag may hold a password
        settings["retrieval"] = options.retrieval.label
    return recorded(bench, arguments.out, settings, arguments.restart), {
        "model": config.model,
        "prompts": len(questions),
        "prompt_files": [str(name) for name in arguments.prompts],
        "notes": _notes(plan),
        "fingerprint": fingerprint(settings),
        "settings": settings,
    }


def _notes(plan: BenchPlan) -> list[str]:
    if not any(setting.warm for setting in plan.settings):
        return []
    if plan.warm_passes == 0:
        return ["Warm: measured in one pass, in which speculators know at every turn the turns before it."]
    times = "one pass" if plan.warm_passes == 1 else f"{plan.warm_passes} passes"
    return [f"Warm: measured after {times} over the same prompts; methods that remember outputs have seen the answers."]


def run_settings(
    arguments: argparse.Namespace, config: ServeConfig, path: Path, dtype: torch.dtype, questions: Sequence[Question]
) -> dict[str, Any]:
    """The settings that decide the records: version, machine, model, questions, given flags."""
    flags = vars(arguments) | config.model_dump(
        exclude_unset=True, exclude={"stage_gpus", "speculator_actors", "speculator_gpus"}
    )
    flags = {name: value for name, value in flags.items() if name not in UNRECORDED and value is not None}
    return {
        "version": VERSION,
        "machine": machine(config.device),
        "model": f"{path.name} {model_hash(path)[:12]}",
        "prompts": f"{len(questions)} questions, {digest(msgspec.json.encode(list(questions)))}",
        "dtype": str(dtype).removeprefix("torch."),
        "threads": n_threads(config),
        **{name: str(value) if isinstance(value, Path) else value for name, value in sorted(flags.items())},
    }


def machine(device: str) -> str:
    """The hardware that times were measured on, and the version of torch."""
    if device != "cpu":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    processor = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), processor)
    return f"{processor}, {os.cpu_count()} CPUs, torch {torch.__version__}"
