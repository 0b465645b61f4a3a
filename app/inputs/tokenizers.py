"""Loads a model's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from app.inputs.chat_templates import with_tools
from engine.errors import UnsupportedModelError
from engine.model.checkpoint_files import CONFIG, SETTINGS, TOKENIZER, read_json_object, refuse_tokenizer
from engine.model.gguf.folder import is_converted

if TYPE_CHECKING:  # transformers loads with the first tokenizer
    from transformers import PreTrainedTokenizerFast

GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes of tokenizers that tokenizer.json says all of
MODEL_TYPE = "llama"  # of models whose generic tokenizers ``AutoTokenizer`` takes as they are


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Return the fast tokenizer in a checkpoint directory, with tools in its chat template if ``with_tools`` knows it.

    Raises UnsupportedModelError if there is none, or only a slow one, which cannot decode incrementally.
    """
    from transformers import PreTrainedTokenizerFast

    try:
        if _is_generic(path):
            tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
        else:
            from transformers import AutoTokenizer  # loads torch, which an ingress does not need otherwise

            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # of any kind, on a wrong value
        raise refuse_tokenizer(path, error) from error
    if not any((path / name).exists() for name in (TOKENIZER, *tokenizer.vocab_files_names.values())):
        raise refuse_tokenizer(path)  # transformers makes an empty one
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UnsupportedModelError(f"{path} has no fast tokenizer (tokenizer.json)")
    if isinstance(tokenizer.chat_template, str):
        tokenizer.chat_template = with_tools(tokenizer.chat_template)
    return tokenizer


def _is_generic(path: Path) -> bool:
    """Whether a checkpoint's tokenizer is one that needs no code of its model's."""
    try:
        settings, config = read_json_object(path / SETTINGS), read_json_object(path / CONFIG)
    except UnsupportedModelError:
        return False
    declared = settings.get("tokenizer_class")
    is_taken = config.get("model_type") == MODEL_TYPE or is_converted(path)
    return declared in GENERIC and "auto_map" not in settings and is_taken
