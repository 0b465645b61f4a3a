"""Steps whose attention is the oracle's: the definition of attention in place of torch's kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from torch import Tensor

from engine.attention.oracle import oracle_attention
from engine.attention.segment import Segment
from engine.kv.arena import KVLayer


@contextmanager
def attention_by_oracle() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segment, "attend", _attend)
        patch.setattr(Segment, "run", lambda *_: None)
        yield


def _attend(segment: Segment, q: Tensor, layer: KVLayer, scale: float, window: int | None) -> Tensor:
    rows = segment.table.rows(0, segment.n_cached + segment.n, q.device)
    query, keys, values = q[0].transpose(0, 1), layer.keys[rows], layer.values[rows]
    found = oracle_attention(query, keys, values, segment.depths, segment.visible, scale, window)
    return found.to(q.dtype).unsqueeze(0)
