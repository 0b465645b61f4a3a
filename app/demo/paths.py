"""Where the demo models lie in an installation."""

from __future__ import annotations

from pathlib import Path

DEMO = "demo"  # what users write as the model
DEMO_TARGET = Path(__file__).parent / "target"
DEMO_DRAFTER = Path(__file__).parent / "drafter"
