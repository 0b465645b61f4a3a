"""Which numerics ``--numerics auto`` would choose on this machine, and why."""

from __future__ import annotations

from app.doctor.findings import OK, WARNING, Finding
from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import texts_path
from engine.errors import SpectraError
from engine.target_model.numerics import find_numerics, missing_tools
from engine.target_model.options import LAYERS, TargetOptions


def numerics(model: str | None, dtype: str | None, quantization: str | None) -> Finding:
    """What a stage would choose; on a GPU its kernels are tested, with random weights of the sizes of ``model``.

    Args:
        model: as ``spectra serve`` takes it; None: the default model's sizes are tested.
        dtype, quantization: as ``spectra serve`` takes them.
    """
    import torch

    if not torch.cuda.is_available():
        more = missing_tools()
        says = "no GPU: auto is Hugging Face's layers on a CPU; on a GPU, kernels are tested at load"
        return Finding("numerics", OK, f"{says}; {more}" if more else says)
    try:
        path = texts_path(model or DEFAULT_MODEL)
        options = TargetOptions(str(path), device="cuda", dtype=dtype, quantization=quantization)
        found = find_numerics(options, path)
    except SpectraError as error:  # which the finding "model" reports
        return Finding("numerics", WARNING, f"not tested: {error}")
    tested = "" if model else "; tested with the sizes of the default model: --model tests those of another"
    return Finding("numerics", WARNING if found.numerics == LAYERS else OK, f"auto is {found}{tested}")
