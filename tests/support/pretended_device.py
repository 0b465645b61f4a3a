"""A CPU that is treated as a device with its own memory: the code paths of a GPU, run on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine import device
from engine.attention import packed_step, segment
from engine.drafter.trees import choice
from engine.sampling import logprobs, noise, processors
from engine.stage import artefacts
from engine.verify import batch, masks


@contextmanager
def pretended_device() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (device, packed_step, segment, noise, processors, choice, batch, masks, artefacts, logprobs):
            patch.setattr(module, "is_host", lambda _: False)
        yield
