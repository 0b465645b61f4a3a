"""Trained drafters beside the executor draft what they draft on a CPU, level by level, in blocks and from graphs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from engine.cuda import graphs
from engine.cuda.drafter import KernelForwards
from engine.cuda.executor import Executor
from engine.cuda.layer import StepOnDevice
from engine.drafter.checkpoint.checkpoint import DrafterCheckpoint
from engine.drafter.serving.forwards import MakeForwards, ModuleForwards
from engine.loop import Engine
from engine.model.spec import ModelSpec
from engine.protocol import Branch
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target.drafter import describe_drafter, drafter_part
from engine.target.info import TargetInfo
from engine.target.local import LocalTarget
from speculators.pool import SpeculatorPool
from tests.engine.cuda.call_again import CallAgain, call_again
from tests.engine.cuda.small_targets import BUCKETS, SPLIT, small_shards
from tests.support.engines import complete_all
from tests.support.served_drafters import KINDS, SETTINGS, Recording, drafter_spec, random_checkpoint

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
    """Texts, and every draft with the text that it stood behind; the target records graphs if it ``executes``."""
    [shard] = small_shards("llama", 1)
    checkpoint = checkpoint_of(kind, shard.spec, window)
    method, drafter = checkpoint.spec.method, describe_drafter(checkpoint, SETTINGS, torch.float32)
    info = TargetInfo(shard.spec, 80, 4, 120, drafter=drafter)
    part = drafter_part(checkpoint, SETTINGS, shard, info, forwards=forwards)
    executors = [Executor(shard, SPLIT, BUCKETS, records=True, taps=part.taps)] if executes else []
    target = LocalTarget(info, [shard], drafter=[part], executors=executors)
    recording = Recording(method, every)
    engine = Engine(target, SpeculatorPool(extra={method: lambda _: recording}), SchedulerOptions(prefill_chunk=13))
    params = SamplingParams(max_tokens=N_TOKENS, stop_ids=(), seed=5, **sampling)
    done = complete_all(engine, [Request(prompt, params, method, max_nodes=N_NODES) for prompt in PROMPTS], 2)
    return [one.token_ids for one in done], recording.told


def check_alike(found: Found, wanted: Found) -> None:
    assert found[0] == wanted[0]
    assert found[1], "nothing was drafted"
    assert len(found[1]) == len(wanted[1])
    for (text, ours), (other, cpus) in zip(found[1], wanted[1], strict=True):
        assert (text, list(ours.tokens), ours.parents) == (other, list(cpus.tokens), cpus.parents)
        if cpus.scores is not None:
            assert ours.scores == pytest.approx(cpus.scores, rel=1e-3)


@pytest.mark.parametrize("kind", LAYERED)
def test_drafts_are_those_of_a_cpu(kind: str) -> None:
    check_alike(drafted(kind, by_kernels(records=False)), drafted(kind))


@pytest.mark.parametrize("kind", ["eagle", "dflash"])
def test_behind_a_window_too(kind: str) -> None:
    check_alike(drafted(kind, by_kernels(records=False), window=5), drafted(kind, window=5))


def test_a_drafter_that_fails_to_warm_up_costs_drafts_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no graph")

    call_again(monkeypatch)
    monkeypatch.setattr(graphs, "make_plan", fails)
    [shard] = small_shards("llama", 1)
    checkpoint = checkpoint_of("eagle", shard.spec)
    info = TargetInfo(shard.spec, 80, 4, 120, drafter=describe_drafter(checkpoint, SETTINGS, torch.float32))
    runtime = drafter_part(checkpoint, SETTINGS, shard, info, forwards=by_kernels(records=True)).runtime
    assert runtime is not None
    assert not list(runtime.warm_up())
    assert "the drafter failed to warm up" in caplog.text


@pytest.fixture
def in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are calls, and nothing runs launch by launch."""

    def alone(*_: object) -> None:
        pytest.fail("this ran launch by launch")

    call_again(monkeypatch)
    monkeypatch.setattr(graphs, "PROGRAMS", 8)
    monkeypatch.setattr(StepOnDevice, "of", alone)


@pytest.mark.parametrize("kind", ["eagle", "dflash"])
def test_graphs_draft_the_same(kind: str, in_graphs: None) -> None:
    sampling = {"temperature": 0.9, "verification": "rejection"}
    found = drafted(kind, by_kernels(records=True), every=3, **sampling)
    check_alike(found, drafted(kind, every=3, **sampling))
    assert 0 < CallAgain.n_graphs < CallAgain.n_replays


def test_steps_whose_layers_a_drafter_taps_are_graphs(in_graphs: None) -> None:
    """The embedding among them."""
    check_alike(drafted("dflash", by_kernels(records=True), executes=True), drafted("dflash"))
