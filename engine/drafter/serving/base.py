"""What all ways of drafting share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.drafter.serving.committed import Committed
from engine.protocol import Branch
from engine.upload import Upload


class DraftingNetwork(Protocol):
    """One drafter's network and cache. One thread calls it."""

    def learn(self, committed: Sequence[Committed]) -> None:
        """Keep what layers make of what was committed, without drafts."""

    def draft(self, committed: Sequence[Committed]) -> list[Branch | None]:
        """Learn what was committed of sequences that want a draft, and draft; in order."""


def upload_ids(device: torch.device, *lists: Sequence[int]) -> list[Tensor]:
    """Lists of numbers as int64 tensors, in one copy."""
    upload = Upload(device)
    parts = [upload.add(numbers) for numbers in lists]
    upload.send()
    return [part.tensor for part in parts]
