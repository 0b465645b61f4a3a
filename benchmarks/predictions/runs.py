"""Runs of the benchmark: answers that are committed as they were recorded, and answers of a model."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from app.bench.replay import ReplayTarget
from benchmarks.predictions.edits import clustered, scattered
from engine.events import RequestStats
from engine.loop import Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.local import LocalTarget
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool

PASTED = ", pasted"  # behind a method: the prediction stands at the end of the prompt, and is no prediction


class PredictionCase(NamedTuple):
    """An answer, and what is predicted of it."""

    kind: str
    prompt: list[int]
    prediction: list[int]
    answer: list[int]


@dataclass(slots=True)
class PredictionFigures:
    """Of one method and one kind."""

    tokens: int = 0
    forwards: int = 0
    nodes: int = 0
    n: int = 0
    identical: int = 0
    seconds: list[float] = field(default_factory=list)  # of decoding, by answer

    def add(self, stats: RequestStats, identical: bool, seconds: float = 0.0) -> None:
        """One more answer."""
        self.tokens += sum(stats.step_tokens)
        self.forwards += stats.target_forwards
        self.nodes += stats.drafted_tokens
        self.n += 1
        self.identical += identical
        self.seconds.append(seconds)

    @property
    def tokens_per_forward(self) -> float:
        """Without the prefill and its token."""
        return self.tokens / max(self.forwards, 1)


def replayed(
    cases: Sequence[PredictionCase], methods: Sequence[str], max_nodes: int, vocab_size: int, done: Callable[[], object]
) -> dict[str, dict[str, PredictionFigures]]:
    """Method -> kind -> what it would have saved of recorded answers."""
    longest = max(len(case.prompt) + len(case.prediction) + len(case.answer) for case in cases)
    found: dict[str, dict[str, PredictionFigures]] = {}
    for label in methods:
        target = ReplayTarget(vocab_size, longest)
        options = SchedulerOptions(max_sequences=1, prefix_cache=False)
        engine = Engine(target, SpeculatorPool(SpeculatorOptions()), options)
        for case in cases:
            pasted = label.endswith(PASTED)
            prompt = [*case.prompt, *case.prediction] if pasted else case.prompt
            params = SamplingParams(max_tokens=len(case.answer))
            predicted = [] if pasted else case.prediction
            request = Request(prompt, params, label.removesuffix(PASTED), max_nodes, prediction=predicted)
            target.answers.append(case.answer)
            got = engine.complete(request)
            figures = found.setdefault(label, {}).setdefault(case.kind, PredictionFigures())
            figures.add(got.stats, got.token_ids == case.answer)
            done()
    return found


def predictions_of(answers: Sequence[list[int]], shares: Sequence[float], seed: int) -> dict[str, list[list[int]]]:
    """Kind -> a prediction of every answer: itself, edited, and that of another."""
    found: dict[str, list[list[int]]] = {"equal": list(answers)}
    for share in shares:
        for name, change in (("clustered", clustered), ("scattered", scattered)):
            rng = random.Random(f"{seed}/{share}/{name}")
            found[f"{share:.0%} {name}"] = [change(answer, share, rng) for answer in answers]
    return found | {"useless": [*answers[1:], answers[0]]}


class AnsweringModel:
    """Answers of a model, one at a time, with the state of a server that lives on.

    Args:
        target: writes them.
        options: of the speculators.
        params: of every answer.
        max_nodes: nodes of a step.
    """

    def __init__(self, target: LocalTarget, options: SpeculatorOptions, params: SamplingParams, max_nodes: int) -> None:
        self._target = target
        self._options = options
        self._params = params
        self._max_nodes = max_nodes

    def engine(self) -> Engine:
        """A fresh engine."""
        return Engine(self._target, SpeculatorPool(self._options), SchedulerOptions(prefix_cache=False))

    def answer(
        self, engine: Engine, prompt: list[int], method: str, predicted: list[int]
    ) -> tuple[list[int], RequestStats]:
        """The ids of one answer, and its figures."""
        done = engine.complete(Request(prompt, self._params, method, self._max_nodes, prediction=predicted))
        return done.token_ids, done.stats

    def measured(
        self,
        prompts: Sequence[list[int]],
        answers: Sequence[list[int]],
        methods: Sequence[str],
        predictions: Mapping[str, Sequence[list[int]]],
        done: Callable[[], object],
    ) -> dict[str, dict[str, PredictionFigures]]:
        """Method -> kind -> what it saved."""
        found: dict[str, dict[str, PredictionFigures]] = {}
        for method in methods:
            for kind, predicted in predictions.items():
                engine = self.engine()
                figures = found.setdefault(method, {})[kind] = PredictionFigures()
                for prompt, answer, one in zip(prompts, answers, predicted, strict=True):
                    ids, stats = self.answer(engine, prompt, method, one)
                    figures.add(stats, ids == answer, stats.decode_seconds)
                    done()
        return found

    def speed_when_useless(
        self, prompts: Sequence[list[int]], predicted: Sequence[list[int]], method: str, without: str, repeats: int
    ) -> float:
        """Time without a prediction over time with a useless one: the median of turns by turns, each in both orders.

        ``without`` drafts where there is no prediction.
        """
        first, second = self.engine(), self.engine()
        ratios: list[float] = []
        for repeat in range(repeats + 1):
            for prompt, one in zip(prompts, predicted, strict=True):
                turns = [(first, without, []), (second, method, one)]
                seconds = {}
                for engine, name, ids in turns if repeat % 2 else turns[::-1]:
                    seconds[id(engine)] = self.answer(engine, prompt, name, ids)[1].decode_seconds
                if repeat:  # the first round compiles and fills caches
                    ratios.append(seconds[id(first)] / seconds[id(second)])
        return statistics.median(ratios)
