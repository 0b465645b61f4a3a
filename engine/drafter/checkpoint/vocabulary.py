"""Which of the target's tokens a drafter with a smaller vocabulary can draft."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from engine.drafter.spec import DrafterSpec
from engine.errors import UnsupportedModelError


def draft_ids(folder: Path, spec: DrafterSpec, offsets: Tensor | None, drafted: Tensor | None) -> Tensor | None:
    """The target's id of every draft id, int64 ``[draft_vocab_size]``; None where both vocabularies are the same.

    Args:
        folder: of the checkpoint, for messages.
        spec: of the drafter.
        offsets: its ``d2t``, ``[draft_vocab_size]``: what to add to a draft id.
        drafted: its ``t2d``, bool ``[vocab_size]``: whether an id of the target can be drafted.

    Raises:
        UnsupportedModelError: the tables are missing, or are none of this vocabulary, or contradict each other.
    """
    n = spec.draft_vocab_size
    if n == spec.vocab_size:
        return None
    listed = None if drafted is None else drafted.bool().nonzero().flatten()
    if offsets is None:
        if listed is None:
            raise UnsupportedModelError(f"{folder} drafts {n} of {spec.vocab_size} ids, but has no d2t that says which")
        ids = listed
    else:
        ids = torch.arange(len(offsets)) + offsets.flatten().long()
    if len(ids) != n:
        raise UnsupportedModelError(f"d2t in {folder} is of {len(ids)} draft ids; draft_vocab_size is {n}")
    if int(ids.min()) < 0 or int(ids.max()) >= spec.vocab_size or len(set(ids.tolist())) < n:
        raise UnsupportedModelError(
            f"d2t in {folder} does not lead to {n} different ids under {spec.vocab_size}; it must hold offsets"
        )
    if listed is not None and len(listed) == n and not torch.equal(listed, ids.sort().values):
        raise UnsupportedModelError(f"d2t and t2d in {folder} name different ids")
    return ids


def offset_table(ids: Tensor) -> Tensor:
    """``d2t`` of ``draft_ids``."""
    return ids - torch.arange(len(ids), device=ids.device)


def membership_table(ids: Tensor, vocab_size: int) -> Tensor:
    """``t2d`` of ``draft_ids``."""
    table = torch.zeros(vocab_size, dtype=torch.bool)
    table[ids.cpu()] = True
    return table
