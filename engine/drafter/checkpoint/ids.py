"""Translates layer ids and token ids of public layouts into ours and back.

A tap is the output of a target layer, counted from 0. Layouts count layers differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.drafter.spec import DrafterSpec
from engine.errors import UnsupportedModelError


def default_taps(n_layers: int) -> tuple[int, ...]:
    """EAGLE-3's taps if a checkpoint names none: the inputs of layers 2, L/2 and L-3."""
    return 1, n_layers // 2 - 1, n_layers - 4


def taps_of_input_ids(ids: Sequence[int] | None, n_layers: int) -> tuple[int, ...]:
    """Taps of ids that name a layer by its input, as in EAGLE-3, speculators and vLLM.

    SpecForge and ModelOpt name layers by their output, in the same field, and begin with 1. No known drafter reads the
    first layer's output, so ids that begin with 1 count as outputs, as in SGLang.

    Args:
        ids: from the checkpoint; None or empty: it names none.
        n_layers: of the target.
    """
    if not ids:
        return default_taps(n_layers)
    return tuple(ids) if ids[0] == 1 else tuple(layer - 1 for layer in ids)


def input_ids_of_taps(taps: Sequence[int]) -> list[int]:
    """Ids of the layers whose inputs are the tapped outputs."""
    return [tap + 1 for tap in taps]


def dflash_taps(n_layers: int, n_draft_layers: int) -> tuple[int, ...]:
    """DFlash's taps if a checkpoint names none: one per drafter layer, evenly from 1 to L-3."""
    if n_draft_layers == 1:
        return (n_layers // 2,)
    return tuple(round(1 + place * (n_layers - 4) / (n_draft_layers - 1)) for place in range(n_draft_layers))


def read_draft_ids(folder: Path, spec: DrafterSpec, offsets: Tensor | None, drafted: Tensor | None) -> Tensor | None:
    """The target's id for each draft id, int64 ``[draft_vocab_size]``; None if both vocabularies are the same.

    Args:
        folder: of the checkpoint, for messages.
        spec: describes the drafter.
        offsets: table ``d2t``, ``[draft_vocab_size]``: the target's id minus the draft id.
        drafted: table ``t2d``, bool ``[vocab_size]``: whether the drafter knows an id of the target.

    Raises:
        UnsupportedModelError: the tables are missing, do not fit the vocabularies, or contradict each other.
    """
    n = spec.draft_vocab_size
    if n == spec.vocab_size:
        return None
    listed = None if drafted is None else drafted.bool().nonzero().flatten()
    if offsets is not None:
        ids = torch.arange(len(offsets)) + offsets.flatten().long()
    elif listed is not None:
        ids = listed
    else:
        raise UnsupportedModelError(f"{folder} drafts {n} of {spec.vocab_size} ids, but has no table d2t or t2d")
    if len(ids) != n:
        raise UnsupportedModelError(f"d2t in {folder} has {len(ids)} draft ids; draft_vocab_size is {n}")
    if int(ids.min()) < 0 or int(ids.max()) >= spec.vocab_size or len(set(ids.tolist())) < n:
        raise UnsupportedModelError(
            f"d2t in {folder} does not give {n} different ids below {spec.vocab_size}; it must hold offsets"
        )
    if listed is not None and len(listed) == n and not torch.equal(listed, ids.sort().values):
        raise UnsupportedModelError(f"d2t and t2d in {folder} name different ids")
    return ids


def write_draft_ids(ids: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """Tables ``d2t`` and ``t2d`` of ``read_draft_ids``'s result."""
    known = torch.zeros(vocab_size, dtype=torch.bool)
    known[ids.cpu()] = True
    return {"d2t": ids - torch.arange(len(ids), device=ids.device), "t2d": known}
