"""What the checks for a GPU measure with: counts from a trace, rows that fail, texts that differ."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.measuring.profiling import Kernel, Profile, of_cuda
from benchmarks.gpu.measuring.rows import Row, Rows
from benchmarks.gpu.measuring.writing import compared
from benchmarks.gpu.setting import Setting
from engine.composer import compose
from engine.events import RequestStats, TokenLogprob
from engine.loop import Completion
from engine.protocol import RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from speculators.testing import RightAmongWrong


def setting(seconds: float = 600) -> Setting:
    return Setting(torch.device("cpu"), torch.float32, True, Path(), time.monotonic() + seconds)


def device_types() -> tuple[Any, Any]:
    """What tells a host's event from a device's, as a trace has it."""
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        torch.ones(1)
    host = trace.events()[0].device_type
    return host, type(host).CUDA


def test_a_trace_of_cuda_is_counted_by_what_the_host_asked_and_what_the_device_did() -> None:
    host, device = device_types()

    def event(name: str, kind: Any, microseconds: float = 1, **further: Any) -> FunctionEvent:
        return FunctionEvent(0, name, 0, 100, 100 + microseconds, device_type=kind, **further)

    asked = ["aten::mm", "cudaLaunchKernel", "cudaLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch"]
    asked += ["cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize"]
    events = [event(name, host) for name in asked]
    events += [event("gemm", device, 30), event("gemm", device, 50), event("add", device, 2)]
    events += [event("Memcpy HtoD (Pinned -> Device)", device), event("Memcpy DtoH (Device -> Pinned)", device)]
    events.append(event("a range", device, 1000, is_user_annotation=True))
    found = of_cuda(events)
    assert (found.launches, found.to_device, found.to_host, found.waits) == (6, 1, 1, 1)
    assert found.kernels[0] == Kernel("gemm", 2, pytest.approx(80e-6))
    assert found.n_kernels == 5
    assert found.seconds == pytest.approx(84e-6)


def test_a_trace_without_the_device_counts_nothing() -> None:
    host, _ = device_types()
    assert of_cuda([FunctionEvent(0, "cudaLaunchKernel", 0, 1, 2, device_type=host)]) == Profile(
        None, None, None, None, []
    )


def test_a_row_that_fails_leaves_a_note_and_the_others_go_on() -> None:
    table = Rows(setting(), "t", {"n": "number"})

    def fails() -> list[Row]:
        raise torch.OutOfMemoryError("too much\nand a long story")

    table.attempt("first", fails)
    table.attempt("second", lambda: [{"n": 2, "more": [1]}])
    report = table.report("A note.")
    assert report.rows == [[2]]
    assert report.notes == ["A note.", "first failed: OutOfMemoryError: too much"]
    assert report.document["rows"] == [{"n": 2, "more": [1]}]


def test_what_comes_after_the_deadline_is_said_and_nothing_but_failures_is_one() -> None:
    late = Rows(setting(-1), "t", {"n": "number"})
    late.attempt("first", lambda: [{"n": 1}])
    assert late.report().notes == ["Out of time before: first."]
    failing = Rows(setting(), "t", {"n": "number"})
    failing.attempt("first", lambda: [{"n": 1 // 0}])
    with pytest.raises(RuntimeError, match="first failed: ZeroDivisionError"):
        failing.report()


def completion(tokens: list[int], logprobs: list[float]) -> Completion:
    drawn = [TokenLogprob(*pair) for pair in zip(tokens, logprobs, strict=True)]
    stats = RequestStats(prompt_tokens=1, target_forwards=1, drafted_tokens=0, accepted_tokens=0)
    return Completion(tokens, "length", stats, drawn)


def test_texts_are_compared_up_to_the_first_token_that_differs() -> None:
    first = {0: completion([1, 2, 3], [-1.0, -2.0, -3.0]), 1: completion([1, 2, 3], [-1.0, -2.0, -3.0])}
    found = {0: completion([1, 5, 3], [-1.5, -9.0, -9.0]), 1: completion([1, 2, 3], [-1.0, -2.0, -3.0])}
    row = compared(first, found)
    assert (row["different"], row["greedy"], row["first"], row["places"]) == (1, 1, 1, [1])
    assert (row["unequal"], row["apart"]) == ("1 of 4", 0.5)
    assert compared(first, {1: found[1]})["first"] is None


def test_the_true_tokens_are_a_path_of_the_tree_among_wrong_ones() -> None:
    speculator = RightAmongWrong({(7, 8): [1, 2, 3, 4]}, depth=8)
    view = RequestView.of(0, Request([7, 8], SamplingParams(max_tokens=9)), 100)
    tree = compose(speculator.propose(view, 9), 9)
    assert len(tree) == 9
    assert tree.find([1, 2, 3]) is not None
    assert not tree.is_chain
    assert [tree.find(path) for path in ([1, 2, 3, 4], [9])] == [None, None]
