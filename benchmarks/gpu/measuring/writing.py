"""Requests that are written in many ways: batched, drafted, cut into chunks, preempted, split; and how texts differ."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.measuring.geometry import BLOCK, LLAMA_8B, sized
from benchmarks.gpu.measuring.random_model import random_model
from benchmarks.gpu.measuring.rows import Row
from benchmarks.gpu.measuring.steps import local_target
from benchmarks.gpu.setting import Setting
from engine.loop import Completion, Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.options import SchedulerOptions
from speculators.pool import SpeculatorPool
from speculators.testing import AlwaysRight, AlwaysWrong, RightAmongWrong

PLAIN = "autoregressive"
DEPTH = 8  # tokens of a draft
COLUMNS = {
    "way": "way",
    "texts": "texts",
    "different": "different",
    "greedy": "of these greedy",
    "first": "first different token",
    "unequal": "unequal log-probabilities",
    "apart": "largest difference",
    "preemptions": "preemptions",
    "per_step": "tokens a step",
    "tokens_s": "tokens/s",
}


@dataclass(frozen=True, slots=True)
class Way:
    """One way of running the same requests."""

    name: str
    batch: int = 32
    method: str = PLAIN
    chunk: int = 512  # rows of prompt in a step
    stages: int = 1
    share: float = 1.0  # of the texts
    room: float = 1.0  # of the KV blocks that the batch needs


WAYS = (  # the first is what the others are compared with; what decides most comes next
    Way("plain, batch 32"),
    Way("plain, batch 32, again"),
    Way("tree, batch 32", method=RightAmongWrong.name),
    Way("chain, batch 7", batch=7, method=AlwaysRight.name, share=0.5),
    Way("plain, batch 1", batch=1, share=0.125),
    Way("tree, batch 1", batch=1, method=RightAmongWrong.name, share=0.125),
    Way("chunks of 64 rows", chunk=64),
    Way("preempted", room=0.5),
    Way("2 stages", stages=2),
    Way("4 stages", stages=4),
    Way("wrong chain, batch 7", batch=7, method=AlwaysWrong.name, share=0.25),
    Way("plain, batch 7", batch=7, share=0.5),
    Way("3 stages", stages=3),
    Way("tree, batch 7, chunks of 64, preempted, 2 stages", 7, RightAmongWrong.name, 64, 2, 0.5, 0.5),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of prompts and texts."""

    texts: int
    tokens: int  # of each text
    shortest: int  # prompt, tokens
    longest: int


def sizes(tiny: bool) -> Sizes:
    """64 texts of 256 tokens, or as few as show that everything runs."""
    return Sizes(4, 40, 40, 100) if tiny else Sizes(64, 256, 16, 600)


def prompts(size: Sizes, vocab: int) -> list[list[int]]:
    """Random ids; lengths are spread so that batches are ragged."""
    rng = random.Random(0)
    return [[rng.randrange(vocab) for _ in range(rng.randint(size.shortest, size.longest))] for _ in range(size.texts)]


def blocks_needed(way: Way, prompts: Sequence[Sequence[int]], n_tokens: int) -> int:
    """KV blocks of a way's cache: a share of what its largest batch has in the end, but room for one text."""
    each = sorted((-(-(len(prompt) + n_tokens + 3 * DEPTH + 1) // BLOCK) for prompt in prompts), reverse=True)
    return max(each[0] + 1, math.ceil(way.room * sum(each[: way.batch])))


class Writer:
    """Writes the same texts in every way.

    Args:
        setting: of the check.
        exact: by the executor of ``engine.cuda`` instead of Hugging Face's layers.
    """

    def __init__(self, setting: Setting, exact: bool = False) -> None:
        self._setting, self._exact = setting, exact
        self.geometry = sized(setting, LLAMA_8B)
        self._size = sizes(setting.tiny)
        self._model = random_model(self.geometry, setting.device, setting.dtype)
        self._prompts = prompts(self._size, self.geometry.vocab)
        self._first: dict[int, Completion] = {}

    def row(self, way: Way) -> list[Row]:
        """Run one way; the first is what the later ones are compared with."""
        began = time.perf_counter()
        found, n_steps = self._write(way)
        seconds = time.perf_counter() - began
        if not self._first:
            self._first = found
        n_tokens = sum(len(one.token_ids) for one in found.values())
        written = {
            "way": way.name,
            "texts": len(found),
            "preemptions": sum(one.stats.preemptions for one in found.values()),
            "per_step": n_tokens / n_steps,
            "tokens_s": n_tokens / seconds,
        }
        return [written | compared(self._first, found)]

    def _write(self, way: Way) -> tuple[dict[int, Completion], int]:
        """Completions by text, as many as are done in time, and the steps of decoding they took together."""
        size = self._size
        longest = size.longest + size.tokens
        stages = min(way.stages, self.geometry.n_layers)
        n_blocks = blocks_needed(way, self._prompts, size.tokens)
        target = local_target(self._model, n_blocks, longest, stages, self._exact)
        answers = {tuple(self._prompts[i]): one.token_ids for i, one in self._first.items()}
        pool = SpeculatorPool(
            extra={
                AlwaysRight.name: lambda _: AlwaysRight(answers, DEPTH),
                AlwaysWrong.name: lambda _: AlwaysWrong(answers, DEPTH),
                RightAmongWrong.name: lambda _: RightAmongWrong(answers, DEPTH),
            }
        )
        engine = Engine(target, pool, SchedulerOptions(prefill_chunk=way.chunk, prefix_cache=False))
        asked = [self._request(i, way.method) for i in range(math.ceil(way.share * size.texts))]
        done: dict[int, Completion] = {}
        for index, completion in engine.run(asked, way.batch):
            done[index] = completion
            if self._setting.left <= 0:
                break
        return done, sum(one.stats.target_forwards for one in done.values())

    def _request(self, index: int, method: str) -> Request:
        params = SamplingParams(
            max_tokens=self._size.tokens, temperature=0.8 if index % 2 else 0.0, seed=index, logprobs=0
        )
        return Request(self._prompts[index], params, method=method, max_nodes=3 * DEPTH)


def compared(first: Mapping[int, Completion], found: Mapping[int, Completion]) -> dict[str, Any]:
    """How the texts that both have differ."""
    both = sorted(first.keys() & found.keys())
    places = {i: first_difference(first[i].token_ids, found[i].token_ids) for i in both}
    different = [i for i in both if places[i] is not None]
    apart = [
        abs(ours.logprob - theirs.logprob)
        for i in both
        for ours, theirs in zip((first[i].logprobs or [])[: places[i]], found[i].logprobs or [], strict=False)
    ]
    return {
        "different": len(different),
        "greedy": sum(i % 2 == 0 for i in different),
        "first": min((place for place in places.values() if place is not None), default=None),
        "places": [places[i] for i in different],
        "unequal": f"{sum(one > 0 for one in apart)} of {len(apart)}",
        "apart": max(apart, default=None),
    }


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Place of the first token that differs, or None."""
    for place, (ours, theirs) in enumerate(zip(one, other, strict=True)):
        if ours != theirs:
            return place
    return None
