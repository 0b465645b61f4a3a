"""What does a step of Llama 70B take: a stage of 20 layers in bf16, and all 80 layers in int8 on one GPU?

A stage of four is 20 layers, and on the last one norm, head and verification: "layers" is what the first three take,
"and verify" what the last one takes beside that. "of copy" is how fast the layers' weights are read, over the speed of
a copy. The context is not written: times do not depend on its values. Int8 is multiplied as it is where our kernels can
run, and converted at every use elsewhere. With numerics "exact" our executor runs the layers, as recorded graphs.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any

from benchmarks.gpu.measuring.clock import copy_bandwidth
from benchmarks.gpu.measuring.geometry import BLOCK, LLAMA_70B, sized
from benchmarks.gpu.measuring.random_model import random_model
from benchmarks.gpu.measuring.rows import Rows
from benchmarks.gpu.measuring.steps import Decoding, Shape
from benchmarks.gpu.setting import Report, Setting
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.stage.stage import Stage
from engine.step import Step, StepResult
from engine.target.info import TargetInfo, positions
from engine.target.loading import whole_range
from engine.target.numerics import multiply_small_weights
from engine.target.options import EXACT, FAST

CONTEXT = 2048
STAGE_LAYERS = 20
STEPS = ((1, 0), (1, 15), (1, 63), (8, 0), (8, 7), (32, 0), (32, 15))  # sequences, nodes of each
RUNS, WARMUP = 20, 2
COLUMNS = {
    "weights": "weights",
    "numerics": "numerics",
    "sequences": "sequences",
    "nodes": "nodes each",
    "rows": "rows",
    "layers_ms": "layers, ms",
    "verify_ms": "and verify, ms",
    "of_copy": "of copy",
}


class TimedStage:
    """A target of one stage that keeps the seconds of each step's two halves, the device waited for in between."""

    def __init__(self, setting: Setting, numerics: str, model: Any, n_blocks: int, max_model_len: int) -> None:
        self.info = TargetInfo(read_spec(model.config, ()), n_blocks, BLOCK, max_model_len)
        shard = ModelShard(model, self.info.spec, whole_range(self.info.spec), positions(self.info))
        self.layers: list[float] = []
        self.verify: list[float] = []
        self._setting = setting
        if numerics == EXACT:
            from engine.cuda.executor import Executor

            self._stage = Stage(shard, n_blocks, BLOCK, executor=Executor(shard))
            self._stage.warm_up()
        else:
            multiply_small_weights(str(setting.device), [shard])
            self._stage = Stage(shard, n_blocks, BLOCK)

    def step(self, step: Step) -> StepResult:
        """Run it."""
        self._setting.synchronize()
        began = time.perf_counter()
        activations = self._stage.forward(step, None)
        self._setting.synchronize()
        halfway = time.perf_counter()
        results = self._stage.verify(activations)
        self._setting.synchronize()
        ended = time.perf_counter()
        self.layers.append(halfway - began)
        self.verify.append(ended - halfway)
        return StepResult(step.step_id, results, ended - began)


def run(setting: Setting) -> Report:
    """Both."""
    rows = Rows(setting, "seventy: a step of Llama 70B geometry", COLUMNS)
    copy = copy_bandwidth(setting)
    measure(rows, STAGE_LAYERS, False, copy)
    context, runs = sizes(setting)
    notes = [f"{context} tokens of context each, medians of {runs} steps.", f"A copy moves {copy / 1e12:.3g} TB/s."]
    measure(rows, LLAMA_70B.n_layers, True, copy)
    return rows.report(*notes)


def sizes(setting: Setting) -> tuple[int, int]:
    """Tokens of context, and steps that are measured."""
    return (64, 2) if setting.tiny else (CONTEXT, RUNS)


def numerics_of(setting: Setting) -> list[str]:
    """Those that can run there."""
    return [FAST, EXACT] if setting.on_cuda and find_spec("triton") is not None else [FAST]


def measure(rows: Rows, n_layers: int, int8: bool, copy: float) -> None:
    """Add a row for every size of a step of one model."""
    setting = rows.setting
    geometry = sized(setting, replace(LLAMA_70B, n_layers=n_layers))
    weights = f"{geometry.n_layers} layers, {'int8' if int8 else setting.dtype_name}"
    make = partial(random_model, geometry, setting.device, setting.dtype, int8=int8)
    model = rows.tried(weights, make)
    if model is None:
        return
    read = sum(tensor.nbytes for tensor in model.model.layers.state_dict().values())
    for numerics, (sequences, nodes) in product(numerics_of(setting), STEPS[:2] if setting.tiny else STEPS):
        shape = Shape(sequences, nodes, sizes(setting)[0])
        halves = rows.tried(f"{weights}, {numerics}, {shape.name}", partial(_halves, setting, numerics, model, shape))
        if halves is None:
            continue
        layers, verify = halves
        rows.add(
            {
                "weights": weights,
                "numerics": numerics,
                "sequences": sequences,
                "nodes": nodes,
                "rows": sequences * (nodes + 1),
                "layers_ms": layers * 1e3,
                "verify_ms": verify * 1e3,
                "of_copy": read / layers / copy,
            }
        )


def _halves(setting: Setting, numerics: str, model: Any, shape: Shape) -> tuple[float, float]:
    """Median seconds of a step's layers and of what follows them; the cache is given back with the target."""
    runs = sizes(setting)[1]
    targets: list[TimedStage] = []

    def timed(*given: Any) -> TimedStage:
        targets.append(TimedStage(setting, numerics, *given))
        return targets[0]

    decoding = Decoding(model, shape, timed)
    for _ in range(WARMUP + runs):
        decoding.step()
    return statistics.median(targets[0].layers[-runs:]), statistics.median(targets[0].verify[-runs:])
