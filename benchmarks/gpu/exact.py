"""Does numerics exact write the same texts in every way, and are they Hugging Face's?

64 texts of 256 tokens are written plainly in batches of 32, then in other batches, by trees and chains, in chunks of
prompts, with preemptions and on two stages: every token and log-probability must have the same bits. Random weights
have many near-ties, which makes this a hard test. The log-probabilities of the first way are compared with Hugging
Face's layers in fp32. Every second text is sampled, the others are greedy. Eight minutes.
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.measuring.models import BLOCK, LLAMA_8B, fit_layers, make_llama, shrink
from benchmarks.gpu.setting import GpuSetting, MeasurementPart, Row, attempt
from engine.cuda.executor import Executor
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
HIGHER = {torch.float32: torch.float64, torch.bfloat16: torch.float32}  # precisions to compare with


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
Sizes = tuple[int, int, int, int]  # texts, tokens of each, tokens of the shortest and of the longest prompt
SIZES, TINY_SIZES = (64, 256, 16, 600), (4, 9, 30, 70)


class VariantWriter:
    """Writes the same texts in every way."""

    def __init__(self, setting: GpuSetting, sizes: Sizes) -> None:
        n_texts, self._n_tokens, shortest, longest = sizes
        self._setting, self._longest = setting, longest + self._n_tokens
        cached = 32 * (self._longest + 3 * DEPTH + BLOCK)
        geometry = shrink(setting, fit_layers(LLAMA_8B, setting.free_bytes, setting.dtype.itemsize, cached))
        self._model = make_llama(setting, geometry)
        rng = random.Random(0)
        lengths = [rng.randint(shortest, longest) for _ in range(n_texts)]
        self._prompts = [[rng.randrange(geometry.vocab) for _ in range(n)] for n in lengths]
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
        dtypes, greedy, best = (HIGHER[self._setting.dtype], self._setting.dtype), 0, 0
        errors: tuple[list[Tensor], list[Tensor]] = [], []  # of the executor, and of these layers
        for i, text in texts:
            ids = torch.tensor([*self._prompts[i], *text.token_ids], device=self._setting.device)
            drawn = ids[len(self._prompts[i]) :, None]
            exact, rounded = (compute_reference(self._model, ids[:-1], len(drawn), one).double() for one in dtypes)
            expected, of_dtype = (x.log_softmax(-1).gather(-1, drawn)[:, 0].cpu() for x in (exact, rounded))
            errors[0].append(torch.tensor([one.logprob for one in text.logprobs or []]).double() - expected)
            errors[1].append(of_dtype - expected)
            if i % 2 == 0:
                greedy, best = greedy + len(drawn), best + int((exact.argmax(-1) == drawn[:, 0]).sum())
        error, of_layers = (float(torch.cat(some).square().mean().sqrt()) for some in errors)
        allowed = 2 * of_layers + ROUNDING
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
        engine = Engine(self._make_target(way), SpeculatorPool(extra=kinds), options)
        n, m = math.ceil(way.share * len(self._prompts)), self._n_tokens
        params = [SamplingParams(max_tokens=m, temperature=0.8 * (i % 2), seed=i, logprobs=0) for i in range(n)]
        given = zip(self._prompts, params, strict=False)
        return dict(engine.run([Request(*one, way.method, max_nodes=3 * DEPTH) for one in given], way.batch))

    def _make_target(self, way: RunVariant) -> LocalTarget:
        """Return a target whose cache holds at least one text."""
        each = [-(-(len(prompt) + self._n_tokens + 3 * DEPTH + 1) // BLOCK) for prompt in self._prompts]
        n_blocks = max(max(each) + 1, math.ceil(way.room * sum(sorted(each)[-way.batch :])))
        info = TargetInfo(read_spec(self._model.config, ()), n_blocks, BLOCK, self._longest)
        layers = split_layers(info.spec.n_layers, min(way.stages, info.spec.n_layers))
        shards = [ModelShard(self._model, info.spec, some, positions(info)) for some in layers]
        return LocalTarget.of_shards(info, shards, executors=list(map(Executor, shards)))


@torch.inference_mode()
def compute_reference(model: Any, tokens: Tensor, n_last: int, dtype: torch.dtype) -> Tensor:
    """Return the logits of the last ``n_last`` positions of a text int64 ``[n]`` in ``dtype``, ``[n_last, vocab]``.

    Layers are converted one at a time, to save memory. Attention is torch's, causal and without a cache: nothing of the
    engine runs. The model must have no sliding windows.
    """
    inner = model.model
    hidden = inner.embed_tokens(tokens[None]).to(dtype)
    cos_sin = inner.rotary_emb(hidden, torch.arange(len(tokens), device=tokens.device)[None])
    for layer in inner.layers:
        converted = copy.deepcopy(layer).to(dtype)
        converted.self_attn.config._attn_implementation = "sdpa"
        hidden = converted(hidden, attention_mask=None, position_embeddings=cos_sin)
    logits: Tensor = copy.deepcopy(inner.norm).to(dtype)(hidden[0, -n_last:]) @ model.lm_head.weight.to(dtype).T
    return logits


def write_texts(setting: GpuSetting, sizes: Sizes | None = None, ways: Sequence[RunVariant] = WAYS) -> Iterator[Row]:
    """Yield a row for each way, and the oracle's after the first."""
    writer = VariantWriter(setting, sizes or (TINY_SIZES if setting.is_tiny else SIZES))
    for way in ways:
        yield from attempt(setting, way.name, partial(writer.write, way))
        if way is ways[0]:
            yield from attempt(setting, "oracle", writer.compare_with_oracle)


PARTS = (MeasurementPart("texts", 8, "Are texts and log-probabilities equal in every way, and right?", write_texts),)
