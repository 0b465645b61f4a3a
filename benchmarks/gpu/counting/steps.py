"""Steps whose operations, copies and waits are counted: decoding some sequences, and a chunk of a prompt."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch

from benchmarks.gpu.counting.counter import Counts, counted
from benchmarks.gpu.counting.pretended import move_to_pretended, pretended_cuda
from benchmarks.gpu.measuring.geometry import BLOCK, Geometry
from benchmarks.gpu.measuring.random_model import config, random_model
from engine.model.ranges import LayerRange
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, Work
from engine.tree import TokenTree

PROMPT = 100  # tokens
BLOCKS = 4  # of every sequence
FAST, LAUNCHES, GRAPHS = WAYS = ("fast", "exact, launch by launch", "exact")


@dataclass(frozen=True, slots=True)
class CountedStep:
    """What a step asked for, before its result was wanted and from then on."""

    per_layer: int  # operators and launches of a layer
    rest: int  # operators of the forward beside its layers
    forward: Counts  # of a model of one layer
    verify: Counts

    @property
    def uploads(self) -> int:
        """Copies to the device."""
        return self.forward.uploads + self.verify.uploads

    @property
    def waits(self) -> int:
        """Times at which the host waited."""
        return self.forward.waits + self.verify.waits


def counted_step(
    device: torch.device, n_sequences: int, n_nodes: int, temperature: float, chunk: int = 0, way: str = FAST
) -> CountedStep:
    """A step of ``n_sequences``, each with a random tree of ``n_nodes``, or with ``chunk`` more tokens of its prompt.

    Every tree follows one of which a node was accepted, so keys move. On a CPU the device is a pretended one.
    ``way`` is one of ``WAYS``.
    """
    one, two = (_count(device, n_layers, n_sequences, n_nodes, temperature, chunk, way) for n_layers in (1, 2))
    per_layer = two[0].ops - one[0].ops
    return CountedStep(per_layer, one[0].ops - per_layer, *one)


def _count(
    device: torch.device, n_layers: int, n_sequences: int, n_nodes: int, temperature: float, chunk: int, way: str
) -> tuple[Counts, Counts]:
    with pretended_cuda() if device.type == "cpu" else nullcontext():
        return _run(_stage(device, n_layers, way), n_sequences, n_nodes, temperature, chunk)


def _stage(device: torch.device, n_layers: int, way: str) -> Stage:
    """A whole model in bf16; counts depend on no size but the number of layers."""
    geometry = Geometry("counted", 64, 96, n_layers, 8, 2, 16, 512)
    model = random_model(geometry, device, torch.bfloat16)
    if device.type == "cpu":
        move_to_pretended(model)
    spec = read_spec(config(geometry, 512), ())
    shard = ModelShard(model, spec, LayerRange(0, n_layers, n_layers), n_positions=512)
    executor = None
    if way != FAST:
        from engine.cuda.executor import Executor  # needs Triton

        executor = Executor(shard, records=way == GRAPHS)
    stage = Stage(shard, n_blocks=BLOCKS * 32, block_size=BLOCK, executor=executor)
    stage.warm_up()
    return stage


def _run(stage: Stage, n_sequences: int, n_nodes: int, temperature: float, chunk: int) -> tuple[Counts, Counts]:
    params = SamplingParams(max_tokens=256, temperature=temperature, seed=1)
    starts = [SequenceStart(seq, params, PROMPT, Needs()) for seq in range(n_sequences)]
    blocks = [list(range(BLOCKS * seq, BLOCKS * (seq + 1))) for seq in range(n_sequences)]
    tree = TokenTree(list(range(n_nodes)), [(node - 1) // 2 for node in range(n_nodes)])
    prompt = list(range(PROMPT))
    steps = [Step(0, [Work(seq, 0, prompt, new_blocks=blocks[seq]) for seq in range(n_sequences)], starts)]
    if chunk:
        steps.append(Step(1, [Work(seq, PROMPT, list(range(chunk))) for seq in range(n_sequences)]))
    else:
        keep = [2] if n_nodes > 1 else []
        steps.append(Step(1, [Work(seq, PROMPT, [5], tree) for seq in range(n_sequences)]))
        n_cached = PROMPT + 1 + len(keep)
        steps.append(Step(2, [Work(seq, n_cached, [5], tree, keep, max_new=256) for seq in range(n_sequences)]))
    for step in steps:
        with counted() as forward:
            activations = stage.forward(step, None)
        with counted() as verify:
            stage.verify(activations)
    return forward, verify
