"""A trained drafter in memory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.drafter.spec import DrafterSpec


@dataclass(frozen=True, slots=True)
class DrafterCheckpoint:
    """What a checkpoint holds, normalised. Names and shapes of tensors: this package's docstring."""

    spec: DrafterSpec
    tensors: dict[str, Tensor]  # on the CPU, in the dtype that they are stored in
    draft_ids: Tensor | None  # int64 [draft_vocab_size]: the target's id of every draft id; None: the same
    layout: str  # as recognised, for messages: "EAGLE-3", "speculators dflash"
