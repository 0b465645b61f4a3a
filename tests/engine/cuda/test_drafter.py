"""Drafters on the executor draft as on a CPU: level by level, in blocks, from graphs, and with a draft model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from engine.cuda import graphs
from engine.cuda.drafter import KernelForwards
from engine.cuda.executor import Executor
from engine.cuda.layer import StepOnDevice
from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.drafter.serving.forwards import MakeForwards, ModuleForwards
from engine.loop import Engine
from engine.model.spec import ModelSpec
from engine.protocol import Branch
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.drafter import describe_drafter, drafter_part
from engine.target_model.info import TargetInfo
from engine.target_model.local import LocalTarget
from speculators.draft_model.config import DraftModelConfig
from speculators.draft_model.runner import DraftModelRunner
from speculators.draft_model.speculator import DraftModel
from speculators.pool import SpeculatorPool
from tests.engine.cuda.call_again import CallAgain, call_again
from tests.engine.cuda.small_targets import BUCKETS, SPLIT, small_shards, small_target
from tests.support.engines import complete_all, make_engine
from tests.support.served_drafters import KINDS, SETTINGS, Recording, drafter_spec, random_checkpoint

pytestmark = pytest.mark.matrix
PROMPTS = [[(7 * i + j * (i + 3)) % 38 + 3 for j in range(9 + 11 * i)] for i in range(2)]
N_TOKENS, N_NODES = 8, 9
LAYERED = [kind for kind in KINDS if kind != "medusa"]
Found = tuple[list[list[int]], list[tuple[list[int], Branch]]]


def by_kernels(records: bool) -> MakeForwards:
    return partial(KernelForwards, split=SPLIT, buckets=BUCKETS, records=records)


def checkpoint_of(kind: str, target: ModelSpec, window: int | None = None) -> DrafterCheckpoint:
    spec = drafter_spec(kind, target)
    assert spec.layers is not None
    layers = spec.layers if window is None else replace(spec.layers, window=window)
    return random_checkpoint(replace(spec, taps=(-1, 0, 1) if spec.taps else (), layers=layers))


def drafted(
    kind: str,
    forwards: MakeForwards = ModuleForwards,
    executes: bool = False,
    every: int = 1,
    window: int | None = None,
    **sampling: Any,
) -> Found:
    """Outputs, and every draft with its context; the target records graphs if it ``executes``."""
    [shard] = small_shards("llama", 1)
    checkpoint = checkpoint_of(kind, shard.spec, window)
    method, drafter = checkpoint.spec.method, describe_drafter(checkpoint, SETTINGS, torch.float32)
    info = TargetInfo(shard.spec, 80, 4, 120, drafter=drafter)
    part = drafter_part(checkpoint, SETTINGS, shard, info, forwards=forwards)
    executors = [Executor(shard, None, SPLIT, BUCKETS, records=True, taps=part.taps)] if executes else []
    target = LocalTarget.of_shards(info, [shard], drafter=[part], executors=executors)
    recording = Recording(method, every)
    engine = Engine(target, SpeculatorPool(extra={method: lambda _: recording}), SchedulerOptions(prefill_chunk=13))
    params = SamplingParams(max_tokens=N_TOKENS, stop_ids=(), seed=5, **sampling)
    done = complete_all(engine, [Request(prompt, params, method, max_nodes=N_NODES) for prompt in PROMPTS], 2)
    return [one.token_ids for one in done], recording.drafts


def check_alike(found: Found, expected: Found) -> None:
    assert found[0] == expected[0]
    assert found[1], "nothing was drafted"
    assert len(found[1]) == len(expected[1])
    for (text, ours), (other, cpus) in zip(found[1], expected[1], strict=True):
        assert (text, list(ours.tokens), ours.parents) == (other, list(cpus.tokens), cpus.parents)
        if cpus.scores is not None:
            assert ours.scores == pytest.approx(cpus.scores, rel=1e-3)


@pytest.mark.parametrize(("kind", "window"), [*((kind, None) for kind in LAYERED), ("eagle", 5), ("dflash", 5)])
def test_drafts_are_those_of_a_cpu(kind: str, window: int | None) -> None:
    check_alike(drafted(kind, by_kernels(records=False), window=window), drafted(kind, window=window))


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9}])
def test_a_draft_model_drafts_as_on_a_cpu(sampling: dict[str, Any]) -> None:
    """The draft model is the target itself: only what its cache lacks makes it wrong."""
    found = []
    for exact in (False, True):
        [shard] = small_shards("llama", 1)
        executor = Executor(shard, None, SPLIT, BUCKETS) if exact else None
        drafter = DraftModelRunner(shard, TargetInfo(shard.spec, 80, 4, 120), executor)
        model = DraftModel(DraftModelConfig(tree_nodes=6, tree_beam=2), drafter)
        engine = make_engine(small_target("llama", exact=exact), extra={"small": lambda _, made=model: made})
        params = SamplingParams(max_tokens=8, seed=3, stop_ids=(), **sampling)
        done = complete_all(engine, [Request(prompt[:11], params, "small", max_nodes=6) for prompt in PROMPTS])
        found.append([(one.token_ids, one.stats.step_tokens) for one in done])
    assert found[0] == found[1]
    assert max(n for _, steps in found[1] for n in steps) > 2  # drafts are accepted


def test_a_drafter_that_fails_to_warm_up_does_not_fail_its_target(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call_again(monkeypatch)
    monkeypatch.setattr(graphs, "make_plan", Mock(side_effect=RuntimeError("no graph")))
    [shard] = small_shards("llama", 1)
    checkpoint = checkpoint_of("eagle", shard.spec)
    info = TargetInfo(shard.spec, 80, 4, 120, drafter=describe_drafter(checkpoint, SETTINGS, torch.float32))
    runtime = drafter_part(checkpoint, SETTINGS, shard, info, forwards=by_kernels(records=True)).runtime
    assert runtime is not None
    assert not list(runtime.warm_up())
    assert "the drafter failed to warm up" in caplog.text


@pytest.mark.parametrize(("kind", "executes"), [("eagle", False), ("dflash", False), ("dflash", True)])
def test_graphs_draft_the_same(kind: str, executes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the steps of the target are graphs that a drafter taps, the embedding among them."""
    call_again(monkeypatch)
    monkeypatch.setattr(graphs, "count_attention_programs", lambda *_: 8)
    monkeypatch.setattr(StepOnDevice, "of", Mock(side_effect=AssertionError("this ran launch by launch")))
    sampling: dict[str, Any] = {} if executes else {"temperature": 0.9, "verification": "rejection", "every": 3}
    found = drafted(kind, by_kernels(records=True), executes=executes, **sampling)
    check_alike(found, drafted(kind, **sampling))
    assert 0 < CallAgain.n_graphs < CallAgain.n_replays
