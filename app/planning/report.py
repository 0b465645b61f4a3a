"""A plan as text and as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.planning.inputs import PlanningInput
from app.planning.layouts import GpuLayout, LayoutConstraints
from app.planning.sizes import ModelSizes
from app.reporting.report import columns
from engine.model.partition import GIB

NO_ROOM = "-"
SIDE_BY_SIDE = 64  # default of --max-sequences
ESTIMATES = "Rates and times are estimates: formulas of docs/scaling.md, nothing was run. They follow from"


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """All of it."""

    model: str  # as it was named
    model_flags: str  # of ``spectra serve``, for that model in its dtype and quantization
    sizes: ModelSizes
    constraints: LayoutConstraints
    disks: Sequence[float]  # bytes a second at which one stage reads its weights, each a case
    found: Sequence[GpuLayout]
    best: GpuLayout | None  # the layout to take; None: the model does not fit
    inputs: Sequence[PlanningInput]

    @property
    def command(self) -> str:
        """Serves the best layout; "" if there is none. The cache is rounded down to a tenth of a GiB."""
        if self.best is None:
            return ""
        kv_gib = int(self.best.kv_bytes / GIB * 10) / 10
        more = f" --replicas {self.best.replicas}" if self.best.replicas > 1 else ""
        each = self.best.sequences // self.best.replicas
        more += f" --max-sequences {each}" if each > SIDE_BY_SIDE else ""
        return (
            f"spectra serve {self.model_flags} --device cuda --stages {self.best.stages} --stage-gpus 1 "
            f"--kv-gib {kv_gib:g}{more}"
        )


def document(plan: DeploymentPlan) -> dict[str, Any]:
    """For programs; sizes in bytes, times in seconds."""
    sizes = plan.sizes
    return {
        "model": plan.model,
        "parameters": sizes.n_parameters,
        "layers": sizes.spec.n_layers,
        "dtype": str(sizes.dtype).removeprefix("torch."),
        "weight_bytes": sizes.bytes,
        "kv_bytes_per_token": sizes.kv_token_bytes,
        "gpus": plan.constraints.gpus,
        "usable_bytes_per_gpu": plan.constraints.usable,
        "context": plan.constraints.context,
        "fits": plan.best is not None,
        "command": plan.command,
        "layouts": [_layout(one, plan) for one in plan.found],
        "estimates_from": [asdict(one) for one in plan.inputs],
    }


def text(plan: DeploymentPlan) -> str:
    """For a terminal."""
    sizes, constraints = plan.sizes, plan.constraints
    dtype = str(sizes.dtype).removeprefix("torch.")
    lines = [
        f"{plan.model}: {sizes.n_parameters / 1e9:.2f}B parameters in {sizes.spec.n_layers} layers, {dtype}; "
        f"{sizes.bytes / GIB:.1f} GiB of weights, {sizes.kv_token_bytes / 1024:.0f} KiB of KV cache a token",
        f"{constraints.gpus} GPUs, of each {constraints.usable / GIB:.1f} GiB for weights, KV cache and a step; "
        f"sequences of {constraints.context} tokens, prompt and output",
        "",
        _layouts(plan),
        "",
    ]
    if plan.best is None:
        return "\n".join(
            [*lines, "The model does not fit. More or larger GPUs, or --quantization int8 or fp8, would help."]
        )
    lines += [
        f"{plan.best.replicas} x {plan.best.stages} holds most sequences:",
        *(f"  stage {i}: {one}" for i, one in enumerate(plan.best.held)),
        f"  {plan.command}",
        "",
        ESTIMATES,
        columns([("  " + one.name, _shown(one.value), one.source) for one in _told(plan.inputs)], (0, 1, 2)),
    ]
    return "\n".join(lines)


def _layouts(plan: DeploymentPlan) -> str:
    streams = [rate.streams for rate in max((one.rates for one in plan.found), key=len, default=())]
    head = ["replicas x stages", "weights, GiB", "KV cache, GiB", "sequences"]
    head += [f"load at {disk / 1e9:g} GB/s, s" for disk in plan.disks]
    head += [f"{n} stream{'s' if n > 1 else ''}, tokens/s" for n in streams]
    rows, refused = [head], []
    for one in plan.found:
        name = f"{one.replicas} x {one.stages}"
        if one.why_not:
            refused.append(f"{name} does not fit: {one.why_not}")
            continue
        largest = max(stage.weights for stage in one.held)
        cells = [name, f"{largest / GIB:.1f}", f"{one.kv_bytes / GIB:.1f}", str(one.sequences)]
        cells += [f"{largest / disk:.0f}" for disk in plan.disks]
        rates = {rate.streams: f"{rate.plain:.0f} -> {rate.drafted:.0f} ({rate.nodes})" for rate in one.rates}
        rows.append([*cells, *(rates.get(n, NO_ROOM) for n in streams)])
    said = [columns(rows, (0,))] if len(rows) > 1 else []
    if said:
        said.append(
            "weights: of the largest stage, and how long they load if its disk is its own; KV cache: of a pipeline;\n"
            "tokens/s: over all streams, without drafts -> with them (nodes of a tree)"
        )
    return "\n".join([*said, *refused])


def _layout(one: GpuLayout, plan: DeploymentPlan) -> dict[str, Any]:
    stages = [
        {"layers": [stage.layers.first, stage.layers.last], "weight_bytes": stage.weights, "kv_bytes": stage.kv}
        for stage in one.held
    ]
    largest = max((stage.weights for stage in one.held), default=0)
    return {
        "replicas": one.replicas,
        "stages": one.stages,
        "fits": not one.why_not,
        "why_not": one.why_not,
        "per_stage": stages,
        "kv_bytes": one.kv_bytes,
        "sequences": one.sequences,
        "load_seconds": {f"{disk / 1e9:g} GB/s": largest / disk for disk in plan.disks} if one.held else {},
        "tokens_per_second": [asdict(rate) for rate in one.rates],
    }


def _told(inputs: Sequence[PlanningInput]) -> list[PlanningInput]:
    """Without those that are zero by default."""
    return [one for one in inputs if one.value]


def _shown(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, float | int) else "" if value.startswith("1 +") else value
