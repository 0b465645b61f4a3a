"""Writes a plan as text and as a JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from app.planning.cluster import PROMPT_ROWS
from app.planning.layouts import GpuLayout, Rate
from app.planning.plan import DeploymentPlan
from app.reporting.report import columns
from engine.model.partition import GIB

NO_ROOM = "-"
EXPLANATION = """\
T: ranks of a stage, one GPU each; weights: of the largest rank; load: of a stage that has a disk of its own; KV cache:
of one replica; ms/token and tokens/s over all streams: without drafts -> with drafts (nodes of a tree)"""
PRICES = ["$/M output, 1 stream", "$/M output, most streams", "$/M input"]
PRICES_EXPLANATION = f"""\
$/M output: dollars of all GPUs, idle replicas included, per million tokens of the streams, without drafts -> with
drafts (most streams of the table); $/M input: while all GPUs read prompts, {PROMPT_ROWS} tokens a step"""
AIMS = {"latency": "the least time per token of one stream", "throughput": "most tokens per second over all streams"}
ESTIMATES = "Rates and times are estimates: formulas of docs/explanation/scaling.md, nothing was run. They follow from"


def document(plan: DeploymentPlan) -> dict[str, Any]:
    """Return the plan as JSON for programs; sizes in bytes, times in seconds."""
    sizes = plan.sizes
    return {
        "model": plan.model,
        "parameters": sizes.n_parameters,
        "active_parameters": sizes.n_active,
        "layers": sizes.spec.n_layers,
        "dtype": _dtype(plan),
        "matrix_format": sizes.format,
        "weight_bytes": sizes.bytes,
        "kv_bytes_per_token": sizes.kv_token_bytes,
        "gpus": plan.asked.gpus,
        "usable_bytes_per_gpu": plan.asked.usable,
        "context": plan.asked.context,
        "gpu_price": plan.gpu_price,
        "fits": bool(plan.choices),
        "choices": {
            aim: {"layout": plan.found.index(one), "command": plan.command(one)} for aim, one in plan.choices.items()
        },
        "layouts": [_layout(one, plan) for one in plan.found],
        "estimates_from": [dict(zip(("name", "value", "source"), one, strict=True)) for one in plan.inputs],
    }


def _layout(one: GpuLayout, plan: DeploymentPlan) -> dict[str, Any]:
    stages = [
        {"layers": [stage.layers.first, stage.layers.last], "weight_bytes": stage.weights, "kv_bytes": stage.kv}
        for stage in one.held
    ]
    return {
        "replicas": one.replicas,
        "stages": one.stages,
        "tensor_parallel": one.tensor_parallel,
        "fits": not one.why_not,
        "why_not": one.why_not,
        "per_stage": stages,
        "kv_bytes": one.kv_bytes,
        "sequences": one.sequences,
        "load_seconds": {f"{d / 1e9:g} GB/s": _load_s(one, d) for d in plan.disks} if one.held else {},
        "tokens_per_second": [asdict(rate) for rate in one.rates],
        "prompt_tokens_per_second": one.prompt_tokens_per_s,
        "dollars_per_million": _dollars(one, plan),
        "profile": None if one.profile is None else asdict(one.profile),
    }


def _dollars(one: GpuLayout, plan: DeploymentPlan) -> dict[str, Any] | None:
    """Return dollars per million input tokens, and per million output tokens at each number of streams."""
    if plan.gpu_price is None or not one.rates:
        return None
    output = [
        {"streams": rate.streams, "plain": plan.dollars(rate.plain), "drafted": plan.dollars(rate.drafted)}
        for rate in one.rates
    ]
    return {"input": plan.dollars(one.prompt_tokens_per_s), "output": output}


def _load_s(one: GpuLayout, disk: float) -> float:
    """Return the seconds in which the ranks of the largest stage read their weights from one disk."""
    return one.largest_weights * one.tensor_parallel / disk


def text(plan: DeploymentPlan) -> str:
    """Return the plan as text for a terminal."""
    sizes, asked = plan.sizes, plan.asked
    active = f", {sizes.n_active / 1e9:.2f}B active for a token," if sizes.spec.n_experts else ""
    matrices = "" if sizes.format == _dtype(plan) else f" with {sizes.format} matrices"
    lines = [
        f"{plan.model}: {sizes.n_parameters / 1e9:.2f}B parameters{active} in {sizes.spec.n_layers} layers, "
        f"{_dtype(plan)}{matrices}; {sizes.bytes / GIB:.1f} GiB of weights, {sizes.kv_token_bytes / 1024:.0f} KiB of "
        "KV cache a token",
        f"GPUs: {asked.gpus}, each with {asked.usable / GIB:.1f} GiB for weights, KV cache and a step; "
        f"sequences of {asked.context} tokens, prompt and output",
        "",
        *_table(plan),
        "",
    ]
    if not plan.choices:
        smaller = ", or --quantization int8 or fp8" if sizes.format == _dtype(plan) else ""
        lines.append(f"The model does not fit. Use more or larger GPUs{smaller}.")
        return "\n".join(lines)
    inputs = [(f"  {name}", _value(value), source) for name, value, source in plan.inputs if value]
    for aim, best in plan.choices.items():
        rank = " of each rank" if best.tensor_parallel > 1 else ""
        lines += [
            f"For {AIMS[aim]}, {best}:",
            *(f"  stage {i}{rank}: {one}" for i, one in enumerate(best.held)),
            f"  {plan.command(best)}",
            "",
        ]
    lines += [ESTIMATES, columns(inputs, (0, 1, 2))]
    return "\n".join(lines)


def _table(plan: DeploymentPlan) -> list[str]:
    """Return the table of layouts that fit, if any, and a line for each that does not."""
    streams = [rate.streams for rate in max((one.rates for one in plan.found), key=len, default=())]
    head = ["replicas x stages", "T", "weights, GiB", "KV cache, GiB", "sequences"]
    head += [f"load at {disk / 1e9:g} GB/s, s" for disk in plan.disks]
    head += [f"{n} streams, tokens/s" if n > 1 else "1 stream, ms/token" for n in streams]
    head += PRICES if plan.gpu_price is not None else []
    rows, refused = [head], []
    for one in plan.found:
        if one.why_not:
            refused.append(f"{one} does not fit: {one.why_not}")
            continue
        cells = [
            f"{one.replicas} x {one.stages}",
            str(one.tensor_parallel),
            f"{one.largest_weights / GIB:.1f}",
            f"{one.kv_bytes / GIB:.1f}",
            str(one.sequences),
        ]
        cells += [f"{_load_s(one, disk):.0f}" for disk in plan.disks]
        rates = {rate.streams: _speed(rate) for rate in one.rates}
        rows.append([*cells, *(rates.get(n, NO_ROOM) for n in streams), *_prices(one, plan)])
    explained = EXPLANATION if plan.gpu_price is None else f"{EXPLANATION}\n{PRICES_EXPLANATION}"
    return [*((columns(rows, (0,)), explained) if len(rows) > 1 else ()), *refused]


def _prices(one: GpuLayout, plan: DeploymentPlan) -> list[str]:
    """Return the cells of costs: none without a price."""
    dollars = _dollars(one, plan)
    if dollars is None:
        return [] if plan.gpu_price is None else [NO_ROOM] * len(PRICES)
    ends = [dollars["output"][i] for i in (0, -1)]
    cells = [f"{cost['plain']:.2f} -> {cost['drafted']:.2f}" for cost in ends]
    return [cells[0], f"{cells[1]} ({ends[1]['streams']})", f"{dollars['input']:.3f}"]


def _speed(rate: Rate) -> str:
    """Return the time per token of one stream, or the rate of several."""
    if rate.streams == 1:
        return f"{1e3 / rate.plain:.1f} -> {1e3 / rate.drafted:.1f} ({rate.nodes})"
    return f"{rate.plain:.0f} -> {rate.drafted:.0f} ({rate.nodes})"


def _dtype(plan: DeploymentPlan) -> str:
    return str(plan.sizes.dtype).removeprefix("torch.")


def _value(value: float | str) -> str:
    """Return a figure as text; "" for a formula, which its source repeats."""
    return f"{value:g}" if isinstance(value, float | int) else "" if value.startswith("1 +") else value
