"""The way of a GPU through a stage writes the CPU's texts; the device is a pretended one."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.gpu.counting.pretended import move_to_pretended, pretended_cuda
from engine.attention.ragged import Lengths, ragged
from engine.loop import Engine
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target.info import TargetInfo
from engine.target.local import LocalTarget
from engine.upload import Upload
from speculators.pool import SpeculatorPool
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.served_drafters import KINDS as DRAFTERS
from tests.support.served_drafters import (
    Recording,
    drafted_target,
    drafter_spec,
    random_checkpoint,
    with_drafter,
)
from tests.support.tiny_models import random_prompts, tiny_model

N_TOKENS = 12
KINDS = (("autoregressive", 0.0), ("lookahead", 0.0), ("always-right", 0.0), ("pld-plus-a", 0.0), ("lookahead", 0.9))


@pytest.mark.parametrize("family", ["mistral", "gemma3", "llama"])
def test_texts_are_those_of_a_cpu(family: str) -> None:
    prompts = random_prompts(len(KINDS))
    options = SchedulerOptions(prefill_chunk=40)

    def texts(target: LocalTarget, answers: dict[tuple[int, ...], list[int]]) -> list[list[int]]:
        requests = [
            Request(prompt, SamplingParams(max_tokens=N_TOKENS, temperature=temperature, seed=3), method)
            for prompt, (method, temperature) in zip(prompts, KINDS, strict=True)
        ]
        done = complete_all(make_engine(target, answers, options), requests, 4)
        return [completion.token_ids for completion in done]

    wanted = texts(make_target(family), {})
    answers = {tuple(prompt): answer for prompt, answer in zip(prompts, wanted, strict=True)}
    model = copy.deepcopy(tiny_model(family))
    if family == "llama":
        model.config.sliding_window = 16  # of no use to its layers
    move_to_pretended(model)
    spec = read_spec(model.config)
    with pretended_cuda():
        shards = [ModelShard(model, spec, layers, 600) for layers in split_layers(spec.n_layers, 2)]
        assert texts(LocalTarget(TargetInfo(spec, 200, 16, 500), shards), answers) == wanted


@pytest.mark.parametrize("kind", DRAFTERS)
def test_drafts_are_those_of_a_cpu(kind: str) -> None:
    checkpoint = random_checkpoint(drafter_spec(kind, read_spec(tiny_model("llama").config)))
    prompts = random_prompts(4)

    def drafts(target: LocalTarget) -> tuple[list[list[int]], list[tuple[list[int], list[int], object]]]:
        told = Recording(checkpoint.spec.method)
        engine = Engine(target, SpeculatorPool(extra={told.name: lambda _: told}), SchedulerOptions(prefill_chunk=40))
        params = [
            SamplingParams(max_tokens=N_TOKENS, temperature=t, seed=3, verification=rule)
            for rule in ("coupled", "rejection")
            for t in (0.0, 0.9)
        ]
        requests = [Request(prompt, params[i], told.name, max_nodes=10) for i, prompt in enumerate(prompts)]
        done = complete_all(engine, requests, 4)
        return [one.token_ids for one in done], [(text, list(one.tokens), one.parents) for text, one in told.told]

    wanted = drafts(drafted_target("llama", checkpoint))
    model = copy.deepcopy(tiny_model("llama"))
    move_to_pretended(model)
    spec = read_spec(model.config)
    with pretended_cuda():
        ranges = split_layers(spec.n_layers, 2)
        assert (
            drafts(with_drafter([ModelShard(model, spec, one, 600, one.is_last) for one in ranges], checkpoint))
            == wanted
        )


SEQUENCES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30), st.integers(0, 40)), min_size=1, max_size=4)


@given(SEQUENCES, st.booleans(), st.none() | st.integers(1, 12))
def test_the_ragged_kernel_is_asked_for_what_plain_products_compute(
    drawn: list[tuple[int, int, int]], causal: bool, window: int | None
) -> None:
    """(queries, keys before them, first key row) of every sequence; the last of causal ones see all keys."""
    n_queries, starts = [n for n, _, _ in drawn], [first for _, _, first in drawn]
    n_keys = [n + before if causal else before for n, before, _ in drawn]
    generator = torch.Generator().manual_seed(sum(n_keys))
    q = torch.randn(sum(n_queries), 4, 8, generator=generator).bfloat16()
    k, v = torch.randn(2, 90, 2, 8, generator=generator).bfloat16()

    def attend(device: torch.device, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        upload = Upload(device)
        lengths = Lengths.of(n_queries, starts, n_keys, upload)
        upload.send()
        return ragged(*tensors, lengths, 0.3, causal, window if causal else None)

    wanted = attend(torch.device("cpu"), q, k, v)
    with pretended_cuda() as device:
        found = attend(device, *(x.to(device) for x in (q, k, v)))
        assert torch.allclose(found[0].cpu().float(), wanted[0].float(), atol=0.02)
        assert torch.allclose(found[1].cpu(), wanted[1], atol=1e-4)
