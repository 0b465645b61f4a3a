"""Counts what the tensor-parallel ranks of a stage exchange in a step."""

from __future__ import annotations

from dataclasses import dataclass

from engine.model.spec import ModelSpec

SUM_BYTES = 4  # of a partial sum and of a logit: fp32
LAYER_SUMS = 2  # of a layer: attention's output and the down projection


@dataclass(frozen=True, slots=True)
class ExchangeCount:
    """Exchanges of a rank in one step, each of which all ranks wait for."""

    messages: int = 0
    row_bytes: float = 0.0  # received by a rank for each row of the step


def count_exchanges(
    spec: ModelSpec, n_layers: int, size: int, has_head: bool, itemsize: int = 2, by_rows: bool = False
) -> ExchangeCount:
    """Return the exchanges of ``n_layers`` layers, and of the head if the stage has it.

    Args:
        spec: of the whole model.
        n_layers: of the stage.
        size: ranks of the stage.
        has_head: whether each row passes the head: the leader shares it and collects its logits.
        itemsize: bytes of a finished value.
        by_rows: whether each rank completes a share of the rows and gathers the others, which takes two messages and
            fewer bytes a sum; else every rank gathers all partial sums.
    """
    if size == 1:
        return ExchangeCount()
    others = (size - 1) / size
    width = others * (SUM_BYTES + itemsize) if by_rows else (size - 1) * SUM_BYTES
    sums, head = LAYER_SUMS * n_layers, 2 if has_head else 0
    head_bytes = others * spec.vocab_size * SUM_BYTES if has_head else 0.0
    return ExchangeCount(sums * (2 if by_rows else 1) + head, sums * spec.hidden_size * width + head_bytes)
