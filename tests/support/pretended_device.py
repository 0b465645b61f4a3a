"""A CPU that is treated as a device with memory of its own: what runs on a GPU, with the numbers of a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine import device
from engine.drafter.trees import choice
from engine.sampling import noise, processors
from engine.stage import artefacts, logit_readback
from engine.verify import batch, masks


@contextmanager
def pretended_device() -> Iterator[None]:
    """Inside, everything is drawn, read back and fetched as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (device, noise, processors, choice, batch, masks, artefacts, logit_readback):
            patch.setattr(module, "is_host", lambda _: False)
        yield
