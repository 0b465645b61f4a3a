"""One thread, and the reference model first."""

from __future__ import annotations

import pytest
import torch

from tests.support.draft_models import reference_model

torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _weights() -> None:
    reference_model()  # before the shard takes hold of its own copy
