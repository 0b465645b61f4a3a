"""The path of a GPU through a stage gives the outputs of a CPU; the device is a pretended one."""

from __future__ import annotations

import copy

import pytest
import torch

from benchmarks.gpu.counting.pretended import move_to_pretended, pretended_cuda
from benchmarks.gpu.counting.steps import counted_step
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target.info import TargetInfo
from engine.target.local import LocalTarget
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts, tiny_model

N_TOKENS = 12
KINDS = (("autoregressive", 0.0), ("lookahead", 0.0), ("always-right", 0.0), ("pld-plus-a", 0.0), ("lookahead", 0.9))


@pytest.mark.parametrize("family", ["mistral", "gemma3", "llama"])
def test_outputs_are_those_of_a_cpu(family: str) -> None:
    prompts = random_prompts(len(KINDS))
    options = SchedulerOptions(prefill_chunk=40)

    def texts(target: LocalTarget, answers: dict[tuple[int, ...], list[int]]) -> list[list[int]]:
        requests = [
            Request(prompt, SamplingParams(max_tokens=N_TOKENS, temperature=temperature, seed=3), method)
            for prompt, (method, temperature) in zip(prompts, KINDS, strict=True)
        ]
        done = complete_all(make_engine(target, answers, options), requests, 4)
        return [completion.token_ids for completion in done]

    expected = texts(make_target(family), {})
    answers = {tuple(prompt): answer for prompt, answer in zip(prompts, expected, strict=True)}
    model = copy.deepcopy(tiny_model(family))
    if family == "llama":
        model.config.sliding_window = 16  # its layers have no window
    move_to_pretended(model)
    spec = read_spec(model.config)
    with pretended_cuda():
        shards = [ModelShard(model, spec, layers, 600) for layers in split_layers(spec.n_layers, 2)]
        assert texts(LocalTarget(TargetInfo(spec, 200, 16, 500), shards), answers) == expected


@pytest.mark.parametrize(("n_sequences", "n_nodes", "chunk"), [(1, 63, 0), (8, 63, 0), (2, 0, 64)])
def test_a_step_uploads_and_waits_as_often_for_many_sequences_as_for_one(
    n_sequences: int, n_nodes: int, chunk: int
) -> None:
    one, step = (
        counted_step(torch.device("cpu"), *shape) for shape in ((1, 0, 0.8), (n_sequences, n_nodes, 0.8, chunk))
    )
    assert (step.uploads, step.forward.downloads, step.verify.downloads) == (one.uploads, 0, 1)
    assert step.waits == one.waits == 1
