"""The scripted backend of the HTTP tests, for pages of an edge without a model."""

from __future__ import annotations

import pytest

from tests.app.conftest import ScriptedBackend
from tests.support.tiny_models import tiny_tokenizer


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend(tiny_tokenizer(400))
