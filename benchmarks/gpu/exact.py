"""Does numerics exact write the same texts in every way, and are they Hugging Face's?

64 texts of 256 tokens are written plainly in batches of 32, then in other batches, by trees and chains, in chunks of
prompts, with preemptions and on two stages: every token and log-probability must have the same bits. Random weights
have many near-ties, which makes this a hard test. The log-probabilities of the first way are compared with Hugging
Face's layers in fp32. Every second text is sampled, the others are greedy.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.measuring.models import BLOCK, LLAMA_8B, fit_layers, make_random_model, shrink
from benchmarks.gpu.measuring.scoring import HIGHER, reference_logits, rms
from benchmarks.gpu.measuring.steps import EXACT, executor_maker
from benchmarks.gpu.setting import GpuSetting, MeasurementPart, Row, attempt
from engine.loop import Completion, Engine
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.batch_limits import SchedulerOptions
from engine.target_model.info import TargetInfo, positions
from engine.target_model.local import LocalTarget
from speculators.pool import SpeculatorPool
from speculators.testing import AlwaysRight, RightAmongWrong

PLAIN, TREE, CHAIN = "autoregressive", RightAmongWrong.name, AlwaysRight.name
DEPTH = 8  # tokens of a draft
ORACLE_TEXTS, ROUNDING = 8, 1e-6  # of log-probabilities in fp32


@dataclass(frozen=True, slots=True)
class RunVariant:
    """One way of running the same requests."""

    name: str
    batch: int = 32
    method: str = PLAIN
    chunk: int = 512  # rows of a prompt in a step
    stages: int = 1
    share: float = 1.0  # of the texts
    room: float = 1.0  # of the KV blocks that the batch needs; less than 1 preempts


WAYS = (  # the others are compared with the first
    RunVariant("plain, batch 32"),
    RunVariant("tree, batch 32", method=TREE),
    RunVariant("chain, batch 7", batch=7, method=CHAIN, share=0.5),
    RunVariant("plain, batch 1", batch=1, share=0.125),
    RunVariant("tree, batch 1", batch=1, method=TREE, share=0.125),
    RunVariant("chunks of 64 rows", chunk=64),
    RunVariant("preempted", room=0.5),
    RunVariant("2 stages", stages=2),
    RunVariant("tree, batch 7, chunks of 64, preempted, 2 stages", 7, TREE, 64, 2, 0.5, 0.5),
)


class VariantWriter:
    """Writes the same texts in every way."""

    def __init__(self, setting: GpuSetting) -> None:
        self._setting = setting
        n_texts, self._n_tokens, *lengths = (4, 9, 30, 70) if setting.is_tiny else (64, 256, 16, 600)
        self._longest = lengths[1] + self._n_tokens
        cached = 32 * (self._longest + 3 * DEPTH + BLOCK)
        self._geometry = shrink(setting, fit_layers(LLAMA_8B, setting.free_bytes, setting.dtype.itemsize, cached))
        self._model = make_random_model(self._geometry, setting.device, setting.dtype)
        rng, vocab = random.Random(0), self._geometry.vocab
        self._prompts = [[rng.randrange(vocab) for _ in range(rng.randint(*lengths))] for _ in range(n_texts)]
        self._first: dict[int, Completion] = {}

    def write(self, way: RunVariant) -> Iterator[Row]:
        """Write the texts in one way and compare them with the first way's."""
        began = time.perf_counter()
        found = self._run(way)
        seconds = time.perf_counter() - began
        self._first = self._first or found
        n_tokens = sum(len(one.token_ids) for one in found.values())
        n_steps = sum(one.stats.target_forwards for one in found.values())
        different = sum(one.token_ids != self._first[i].token_ids for i, one in found.items())
        unequal = sum(one.logprobs != self._first[i].logprobs for i, one in found.items())
        yield {
            "way": way.name, "texts": len(found), "different": different, "unequal log-probabilities": unequal,
            "preemptions": sum(one.stats.preemptions for one in found.values()), "tokens a step": n_tokens / n_steps,
            "tokens/s": n_tokens / seconds, "ok": not different and not unequal,
        }  # fmt: skip

    def compare_with_oracle(self) -> Iterator[Row]:
        """Score the first way's texts by Hugging Face's layers; twice their own error in this precision is allowed."""
        texts = list(self._first.items())[:ORACLE_TEXTS]
        greedy = best = 0
        differences: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
        for i, text in texts:
            ids = torch.tensor([*self._prompts[i], *text.token_ids], device=self._setting.device)
            drawn = ids[len(self._prompts[i]) :, None]
            exact, rounded = (
                reference_logits(self._model, ids[:-1], len(drawn), dtype).double()
                for dtype in (HIGHER[self._setting.dtype], self._setting.dtype)
            )
            expected, of_dtype = (x.log_softmax(-1).gather(-1, drawn)[:, 0].cpu() for x in (exact, rounded))
            differences[0].append(torch.tensor([one.logprob for one in text.logprobs or []]).double() - expected)
            differences[1].append(of_dtype - expected)
            if i % 2 == 0:
                greedy, best = greedy + len(drawn), best + int((exact.argmax(-1) == drawn[:, 0]).sum())
        error, allowed = rms(torch.cat(differences[0])), 2 * rms(torch.cat(differences[1])) + ROUNDING
        yield {
            "oracle": "Hugging Face, fp32", "texts": len(texts), "error of log-probabilities": error,
            "allowed error": allowed, "greedy tokens": greedy, "of these its best": best, "ok": error <= allowed,
        }  # fmt: skip

    def _run(self, way: RunVariant) -> dict[int, Completion]:
        """Return completions by text."""
        answers = {tuple(self._prompts[i]): one.token_ids for i, one in self._first.items()}
        tree, chain = RightAmongWrong(answers, DEPTH), AlwaysRight(answers, DEPTH)
        kinds: dict[str, Any] = {TREE: lambda _: tree, CHAIN: lambda _: chain}
        options = SchedulerOptions(prefill_chunk=way.chunk, prefix_cache=False)
        engine = Engine(self._target(way), SpeculatorPool(extra=kinds), options)
        n, m = math.ceil(way.share * len(self._prompts)), self._n_tokens
        params = [SamplingParams(max_tokens=m, temperature=0.8 * (i % 2), seed=i, logprobs=0) for i in range(n)]
        given = zip(self._prompts, params, strict=False)
        return dict(engine.run([Request(*one, way.method, max_nodes=3 * DEPTH) for one in given], way.batch))

    def _target(self, way: RunVariant) -> LocalTarget:
        """Return a target whose cache holds at least one text."""
        each = [-(-(len(prompt) + self._n_tokens + 3 * DEPTH + 1) // BLOCK) for prompt in self._prompts]
        n_blocks = max(max(each) + 1, math.ceil(way.room * sum(sorted(each)[-way.batch :])))
        info = TargetInfo(read_spec(self._model.config, ()), n_blocks, BLOCK, self._longest)
        layers = split_layers(info.spec.n_layers, min(way.stages, info.spec.n_layers))
        shards = [ModelShard(self._model, info.spec, some, positions(info)) for some in layers]
        return LocalTarget(info, shards, executors=list(map(executor_maker(EXACT), shards)))


def write_texts(setting: GpuSetting) -> Iterator[Row]:
    """Yield a row for each way, and the oracle's after the first."""
    writer = VariantWriter(setting)
    for way in WAYS:
        yield from attempt(setting, way.name, partial(writer.write, way))
        if way is WAYS[0]:
            yield from attempt(setting, "oracle", writer.compare_with_oracle)


PARTS = (MeasurementPart("texts", 8, "Are texts and log-probabilities equal in every way, and right?", write_texts),)
