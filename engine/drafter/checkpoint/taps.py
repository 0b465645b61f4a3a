"""Which target layers a checkpoint means: layouts count them differently. A tap is the output of a layer, from 0."""

from __future__ import annotations

from collections.abc import Sequence


def outputs_by_default(n_layers: int) -> tuple[int, ...]:
    """EAGLE-3's taps where a checkpoint names none: the inputs of layers 2, L/2 and L-3."""
    return 1, n_layers // 2 - 1, n_layers - 4


def of_inputs(ids: Sequence[int] | None, n_layers: int) -> tuple[int, ...]:
    """Taps of ids that name a layer by what it reads, as EAGLE-3's, speculators' and vLLM's do.

    SpecForge and ModelOpt name layers by what they put out, in the same field, and begin with 1. No drafter is known to
    read what the first layer puts out, so ids that begin with 1 are taken for outputs, as SGLang does.

    Args:
        ids: from the checkpoint; None or empty: it names none.
        n_layers: of the target.
    """
    if not ids:
        return outputs_by_default(n_layers)
    return tuple(ids) if ids[0] == 1 else tuple(layer - 1 for layer in ids)


def as_inputs(taps: Sequence[int]) -> list[int]:
    """The ids of layers that read what the tapped ones put out."""
    return [tap + 1 for tap in taps]


def of_dflash(ids: Sequence[int] | None, n_layers: int, n_draft_layers: int) -> tuple[int, ...]:
    """DFlash's taps: its ids name outputs; without any, as many as it has layers, from 1 to L-3 evenly."""
    if ids is not None:
        return tuple(ids)
    if n_draft_layers == 1:
        return (n_layers // 2,)
    return tuple(round(1 + place * (n_layers - 4) / (n_draft_layers - 1)) for place in range(n_draft_layers))
