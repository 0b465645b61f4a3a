"""Imports bitsandbytes before any test: its import starts a shell, which a test without a marker may not."""

from __future__ import annotations

from engine.model.matrices.quantization import bitsandbytes

bitsandbytes()
