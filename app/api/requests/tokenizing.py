"""Encodes texts of clients; a text that is too long for the context is refused by its length alone."""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, models, pre_tokenizers

from engine.errors import PromptTooLongError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# How many characters a normalizer may join into one, at most. A character decomposes canonically into at most 4, and
# compatibility forms only make texts longer: len(text) <= len(NFKD(text)) = len(NFD(NFKC(text))) <= 4 len(NFKC(text)).
SHRINKS = {"NFC": 4, "NFKC": 4, "NFD": 1, "NFKD": 1, "Prepend": 1, "Lowercase": 1, "ByteLevel": 1}
KEEPS_ALL = {"ByteLevel", "Split", "Digits", "Punctuation", "Metaspace"}  # pre-tokenizers that drop no character


def most_characters_per_token(backend: Tokenizer) -> int | None:
    """The most characters that one token can stand for; a text of more than so many times the context cannot fit.

    None for a tokenizer that may drop characters, or encode unknown text of any length as one token.
    """
    factors = [_characters_joined(part) for part in _parts(backend.normalizer, "normalizers")]
    parts = _parts(backend.pre_tokenizer, "pretokenizers")
    alphabet = {f"<0x{value:02X}>" for value in range(256)}  # the tokens of single bytes, which encode any text
    if any(part["type"] == "ByteLevel" for part in (*_parts(backend.normalizer, "normalizers"), *parts)):
        alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    elif not getattr(backend.model, "byte_fallback", False):
        return None
    vocabulary = backend.get_vocab(with_added_tokens=True)
    keeps_all = (
        all(factors)
        and all(part["type"] in KEEPS_ALL and part.get("behavior") != "Removed" for part in parts)
        # Tokens that strip swallow all spaces next to them.
        and not any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values())
    )
    is_complete = isinstance(backend.model, models.BPE) and alphabet <= vocabulary.keys()
    return prod(factors) * max(map(len, vocabulary)) if keeps_all and is_complete else None


def _parts(component: Any, members: str) -> list[dict[str, Any]]:
    """The settings of a tokenizer's component, or of each member of a sequence."""
    settings = {} if component is None else json.loads(component.__getstate__())
    found: list[dict[str, Any]] = settings.get(members, [settings] if settings else [])
    return found


def _characters_joined(normalizer: dict[str, Any]) -> int:
    """How many characters a normalizer may join into one, at most; 0: unknown."""
    if normalizer["type"] == "Replace":
        return 0 < len(normalizer["pattern"].get("String", "")) <= len(normalizer["content"])
    return SHRINKS.get(normalizer["type"], 0)


class TextEncoder:
    """Encodes texts without the interpreter lock, so that other threads run meanwhile."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        # Some tokenizer.json files carry training-time settings that would cut prompts silently.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._per_token = most_characters_per_token(self._backend)

    def encode(self, text: str, param: str, max_model_len: int, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text, which may be more than ``max_model_len``, the context.

        Raises:
            PromptTooLongError: the text of field ``param`` cannot fit into the context, whatever its tokens are.
        """
        if self._per_token is not None and len(text) > self._per_token * max_model_len:
            raise PromptTooLongError(
                f"{param} has {len(text)} characters; this model's maximum context length is {max_model_len} tokens, "
                f"and no text of more than {self._per_token * max_model_len} characters fits into it",
                param,
            )
        # The batch, unlike `encode`, releases the lock; "fast" leaves out offsets, which are not needed.
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def word(self, text: str) -> list[tuple[int, ...]]:
        """The ids of a word alone, and after a space if that has as many tokens and differs, as vLLM forbids it."""
        alone, spaced = (
            tuple(self._backend.encode(before + text.lstrip(), add_special_tokens=False).ids) for before in ("", " ")
        )
        return [alone, spaced] if spaced[:1] != alone[:1] and len(spaced) == len(alone) else [alone]

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens included."""
        text: str
        [text] = self._backend.decode_batch([ids], skip_special_tokens=False)
        return text
