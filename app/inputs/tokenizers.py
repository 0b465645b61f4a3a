"""Loads a model's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UnsupportedModelError

if TYPE_CHECKING:  # transformers, and torch with it, loads with the first tokenizer
    from transformers import PreTrainedTokenizerFast


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer in a checkpoint directory.

    Raises:
        UnsupportedModelError: there is none, or only a slow one, which cannot decode incrementally.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(f"{path} has no tokenizer that loads: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UnsupportedModelError(f"{path} has no fast tokenizer (tokenizer.json)")
    return tokenizer
