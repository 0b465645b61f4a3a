"""What sequences of a step want to see of a stage's layers besides the last one's output."""

from __future__ import annotations

from collections.abc import Sequence

from engine.model.ranges import LayerRange
from engine.protocol import Needs


def local_tap(needs: Sequence[Needs], layers: LayerRange) -> int | None:
    """Local layer whose output any sequence wants (one layer per deployment)."""
    for need in needs:
        if need.hidden_layer is not None and layers.first <= need.hidden_layer < layers.last:
            return need.hidden_layer - layers.first
    return None


def tap_dims(needs: Sequence[Needs]) -> int:
    """Dimensions in which the tapped states travel; 0, all of them, where sequences of one step do not agree."""
    dims = {need.hidden_dims for need in needs if need.hidden_layer is not None}
    return dims.pop() if len(dims) == 1 else 0


def local_heads(needs: Sequence[Needs], layers: LayerRange) -> dict[int, list[int]]:
    """Heads that any sequence needs an attention row of, by local layer."""
    wanted: dict[int, set[int]] = {}
    for need in needs:
        for layer, head in need.heads:
            if layers.first <= layer < layers.last:
                wanted.setdefault(layer - layers.first, set()).add(head)
    return {layer: sorted(heads) for layer, heads in wanted.items()}
