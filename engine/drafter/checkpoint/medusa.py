"""Medusa (2401.10774): heads on the target's last state. The file tells how many; public configs say 2 and mean 5."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.drafter.spec import DrafterSpec
from engine.errors import UnsupportedModelError
from engine.model.spec import ModelSpec

_PART = re.compile(r"^heads\.(\d+)\.(?:out|blocks\.(\d+))\.")


def read_medusa(folder: Path, config: dict[str, Any], tensors: Mapping[str, Tensor], target: ModelSpec) -> DrafterSpec:
    """The description of Medusa heads, all of it from their tensors.

    Raises:
        UnsupportedModelError: they have no first head.
    """
    parts = [match for match in map(_PART.match, tensors) if match]
    n_heads = 1 + max(int(part[1]) for part in parts)
    out = tensors.get("heads.0.out.weight")
    if out is None or out.dim() != 2:
        raise UnsupportedModelError(f"{folder} lacks the matrix of head 0's logits")
    vocab_size, hidden = out.shape
    return DrafterSpec(
        method="medusa",
        generation=1,
        target_hidden_size=hidden,
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size,
        taps=(),
        layers=None,
        n_drafts=n_heads,
        n_heads=n_heads,
        n_head_layers=1 + max((int(part[2]) for part in parts if part[2]), default=-1),
    )
