"""Loads a model's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from app.inputs.chat_templates import with_tools
from engine.errors import UnsupportedModelError
from engine.model.gguf.folder import is_converted

if TYPE_CHECKING:  # transformers loads with the first tokenizer
    from transformers import PreTrainedTokenizerFast

GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes of tokenizers that tokenizer.json says all of
MODEL_TYPE = "llama"  # of models whose generic tokenizers ``AutoTokenizer`` takes as they are


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer in a checkpoint directory; its chat template has tools where we have a template with them.

    Raises:
        UnsupportedModelError: there is none, or only a slow one, which cannot decode incrementally.
    """
    from transformers import PreTrainedTokenizerFast

    try:
        if _is_generic(path):
            tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
        else:
            from transformers import AutoTokenizer  # loads torch, which an ingress does not need otherwise

            tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(f"{path} has no tokenizer that loads: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UnsupportedModelError(f"{path} has no fast tokenizer (tokenizer.json)")
    if isinstance(tokenizer.chat_template, str):
        tokenizer.chat_template = with_tools(tokenizer.chat_template)
    return tokenizer


def _is_generic(path: Path) -> bool:
    """Whether a checkpoint's tokenizer is one that needs no code of its model's."""
    try:
        settings = json.loads((path / "tokenizer_config.json").read_text())
        config = json.loads((path / "config.json").read_text())
    except (OSError, ValueError):
        return False
    declared = settings.get("tokenizer_class")
    is_taken = config.get("model_type") == MODEL_TYPE or is_converted(path)
    return declared in GENERIC and "auto_map" not in settings and is_taken
