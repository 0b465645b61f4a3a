"""Measures the seconds of a model's layers, embedding and head on their device.

One layer of each type is built with random weights, because speed does not depend on values, except for the number of
experts that a step reads. Only ``config.json`` is read, and only one layer, embedding and head are in memory at a time.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from engine.kept_files import keep_json
from engine.model.build import one_layer_config, random_model
from engine.model.partition import ModelParts
from engine.model.ranges import LayerRange
from engine.model.shard import ModelShard
from engine.model.spec import ModelSpec, read_spec
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, Work
from engine.target_model.numerics import executor_of
from engine.target_model.options import LAYERS, Resolution
from engine.tree import ROOT, TokenTree

if TYPE_CHECKING:  # needs Triton
    from engine.cuda.executor import Executor

CONTEXT = 256  # tokens of the prompt chunk, and before every tree
MIX = ((None, 0.1), (0, 0.45), (64, 0.45))  # nodes of a tree (None: a prompt chunk) and the share of such steps
REPEATS = 7  # of each kind of step, after a first one that warms up memory and threads
BLOCK = 64  # tokens
VERSION = 5  # of the file
BY_LAYERS = Resolution(LAYERS)


class _Timed:
    """Seconds of the last call of a method."""

    def __init__(self, owner: ModelShard | Executor, name: str, device: torch.device) -> None:
        self.seconds, call = 0.0, getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            began = _now(device)
            result = call(*arguments)
            self.seconds = _now(device) - began
            return result

        setattr(owner, name, timed)


def layer_costs(
    config: Any,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str | None,
    folder: str = "",
    resolution: Resolution | None = None,
) -> ModelParts:
    """Return the seconds per step of every part, measured now or read from an earlier measurement.

    Args:
        config: the checkpoint's Hugging Face config.
        spec: of the model.
        dtype: of activations, and of all weights that do not have one byte.
        device: to measure on; no other process must use it.
        quantization: as for ``load_shard``.
        folder: of kept measurements; "": none are kept.
        resolution: the numerics to measure. An executor's embedding is measured with its layers.

    Raises:
        ConfigError: ``quantization`` is unknown, or its package is not installed.
    """
    run = resolution or BY_LAYERS
    file = Path(folder) / _file_name(config, dtype, device, quantization, run) if folder else None
    found = _read(file) if file is not None else None
    if found is None:
        found = {}
        for kind in sorted(set(spec.layer_types)):
            found[kind] = _measure(config, kind, dtype, device, quantization, run)
            gc.collect()  # modules are in reference cycles, and the next layer needs their memory
        if file is not None:
            keep_json(file, found, "layer costs")
    head = max(one[2] for one in found.values())  # the same part measured again for every type of layer
    embed = max(one[0] for one in found.values())
    return ModelParts(tuple(found[kind][1] for kind in spec.layer_types), embed, head)


def _measure(
    config: Any, kind: str, dtype: torch.dtype, device: torch.device, quantization: str | None, resolution: Resolution
) -> tuple[float, float, float]:
    """Measure embedding, one layer, and norm + head + verification in seconds, weighted over ``MIX``."""
    model = random_model(one_layer_config(config, kind), dtype, device, quantization)
    spec = read_spec(model.config, ())
    if spec.n_experts:
        _spread_embedding(model)
    context = min(CONTEXT, spec.max_positions // 2)
    shard = ModelShard(model, spec, LayerRange(0, 1, 1), min(spec.max_positions, CONTEXT) + 128)
    shard.pack_linears()
    executor = executor_of(resolution, shard)
    stage = Stage(shard, (context + 1 + 64) // BLOCK + 2, BLOCK, executor=executor)
    timed = _Timed(shard, "embed", device), _Timed(shard if executor is None else executor, "run", device)
    embed = layer = head = 0.0
    for share, steps in _steps(shard.spec, context):
        taken = [_seconds(stage, *timed, step) for step in steps][1:]
        embed += share * median(one[0] for one in taken)
        layer += share * median(one[1] for one in taken)
        head += share * median(one[2] for one in taken)
    return embed, layer, head


def _spread_embedding(model: Any) -> None:
    """Scale a random embedding to numbers near 1, so that rows choose their experts independently of each other.

    Smaller numbers vanish next to attention's output, which rows with the same context have nearly in common: 65 rows
    would read 84 of 128 experts instead of 126.
    """
    weight = model.get_input_embeddings().weight
    weight.mul_(weight.shape[1] ** 0.5)


def _seconds(stage: Stage, embed: _Timed, run: _Timed, step: Step) -> tuple[float, float, float]:
    stage.admit(step)
    stage.prepare(step)
    activations = stage.forward(step, None)
    began = _now(activations.hidden.device)
    stage.verify(activations)
    return embed.seconds, run.seconds, _now(activations.hidden.device) - began


def _steps(spec: ModelSpec, context: int) -> Iterator[tuple[float, list[Step]]]:
    """Yield the share and the repetitions of each kind of step; the first is a chunk, the context of the trees."""
    prompt = [place % spec.vocab_size for place in range(context)]
    start = SequenceStart(0, SamplingParams(max_tokens=1 << 30), context, Needs())
    for nodes, share in MIX:
        steps = []
        for turn in range(REPEATS + 1):
            if nodes is None:
                blocks = list(range((context + 1 + 64) // BLOCK + 1))
                steps.append(Step(turn, [Work(0, 0, prompt, new_blocks=blocks)], [start], [0] if turn else []))
            else:
                tokens = [(11 * node + turn) % spec.vocab_size for node in range(nodes)]
                tree = TokenTree(tokens, [ROOT if node == 0 else (node - 1) // 2 for node in range(nodes)])
                steps.append(Step(turn, [Work(0, context, [turn], tree)]))
        yield share, steps


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _file_name(config: Any, dtype: torch.dtype, device: torch.device, quantization: str | None, run: Resolution) -> str:
    """Return a name that depends on config, dtype, quantization, numerics, device and number of threads."""
    if device.type == "cuda":
        place = torch.cuda.get_device_name(device)
    else:
        place = f"{platform.node()}-{platform.machine()}-{os.cpu_count()}x{torch.get_num_threads()}"
    values = {key: value for key, value in config.to_dict().items() if key not in ("_name_or_path", "dtype")}
    measured = json.dumps(
        [VERSION, values, str(dtype), quantization, run.numerics, run.row_tile, place], sort_keys=True, default=str
    )
    return f"{hashlib.sha256(measured.encode()).hexdigest()[:32]}.json"


def _read(file: Path) -> dict[str, tuple[float, float, float]] | None:
    """Read a kept measurement; None if the file is missing or invalid."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {str(kind): (float(one[0]), float(one[1]), float(one[2])) for kind, one in found.items()} or None
    except (OSError, ValueError, TypeError, AttributeError, IndexError):
        return None
