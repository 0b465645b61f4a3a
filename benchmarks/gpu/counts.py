"""How many operators, host tensors and waits is a step?

Counted by a dispatch mode in a small model on the device, or, on a CPU, on a pretended one: both must agree. An
operator is at least one launch; a launch of one of our kernels counts as one, and so does the replay of a graph. The
table holds for any sizes; a model of L layers takes "a layer" times L operators and "the rest".
"""

from __future__ import annotations

from importlib.util import find_spec

from benchmarks.gpu.counting.drafts import counted_draft
from benchmarks.gpu.counting.steps import FAST, GRAPHS, WAYS, counted_step
from benchmarks.gpu.measuring.drafting import KINDS
from benchmarks.gpu.setting import Report, Setting

COLUMNS = ("step", "numerics", "a layer", "rest", "verify", "host tensors", "waits in forward", "waits in verify")
DRAFTS = ("drafter", "sequences", "numerics", "operators", "host tensors", "waits")


def run(setting: Setting) -> Report:
    """Count decoding steps, greedy and sampled, and a chunk of a prompt."""
    rows: list[tuple[str | float, ...]] = []
    for way in WAYS if find_spec("triton") is not None else (FAST,):
        for n_sequences in (1, 8):
            for n_nodes in (0, 63):
                for temperature in (0.0, 0.8):
                    name = f"{n_sequences} x {n_nodes} nodes, {'sampled' if temperature else 'greedy'}"
                    rows.append(_row(setting, name, n_sequences, n_nodes, temperature, 0, way))
            rows.append(_row(setting, f"{n_sequences} x 64 rows of a prompt, greedy", n_sequences, 0, 0.0, 64, way))
    where = "a pretended device" if setting.device.type == "cpu" else "the device"
    document = {"rows": [dict(zip(COLUMNS, row, strict=True)) for row in rows], "counted_on": where}
    title, note = "Operators, host tensors and waits of a step", f"Counted on {where}."
    return Report(title, COLUMNS, rows, (note,), document, (_drafts(setting, note),))


def _drafts(setting: Setting, note: str) -> Report:
    """Trained drafters, who read three rows and draft 16 nodes: of EAGLE as many levels as that takes."""
    rows: list[tuple[str | float, ...]] = []
    for kind in KINDS:
        for n_sequences in (1, 8):
            for way in (FAST, GRAPHS) if find_spec("triton") is not None else (FAST,):
                counts = counted_draft(setting.device, kind, n_sequences, way)
                rows.append((kind, n_sequences, way, counts.ops, counts.uploads, counts.waits))
    document = {"rows": [dict(zip(DRAFTS, row, strict=True)) for row in rows]}
    return Report("Operators, host tensors and waits of a draft", DRAFTS, rows, (note,), document)


def _row(
    setting: Setting, name: str, n_sequences: int, n_nodes: int, temperature: float, chunk: int, way: str
) -> tuple[str | float, ...]:
    step = counted_step(setting.device, n_sequences, n_nodes, temperature, chunk, way)
    return name, way, step.per_layer, step.rest, step.verify.ops, step.uploads, step.forward.waits, step.verify.waits
