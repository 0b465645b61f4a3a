"""Log-probabilities in OpenAI's forms for chats and completions, and the texts of single tokens in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from engine.events import TokenLogprob
from engine.text import Detokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_encode = msgspec.json.Encoder().encode
FLOOR = -9999.0  # stands for minus infinity, which JSON lacks
SPACE = "▁"  # a space in sentencepiece vocabularies


class TokenTexts:
    """Bytes and text of single tokens, cached by id."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        self.tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        decoder = b"" if self._backend.decoder is None else self._backend.decoder.__getstate__()
        is_byte_level = b"ByteLevel" in decoder
        self._byte_of_char = {char: byte for byte, char in bytes_to_unicode().items()} if is_byte_level else {}
        self._has_byte_tokens = b"ByteFallback" in decoder
        self._added: set[int] = set(self._backend.get_added_tokens_decoder())
        self._known: dict[int, tuple[str, list[int]]] = {}

    def __getitem__(self, token_id: int) -> tuple[str, list[int]]:
        """Text and bytes; the text of incomplete characters is ``bytes:\\xe2\\x82``, as in OpenAI's API."""
        found = self._known.get(token_id)
        if found is None:
            raw = self._bytes(token_id)
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                text = "bytes:" + "".join(f"\\x{value:02x}" for value in raw)
            found = self._known[token_id] = (text, list(raw))
        return found

    def _bytes(self, token_id: int) -> bytes:
        token: str | None = self._backend.id_to_token(token_id)
        if token is None:  # the vocabulary is padded beyond the tokenizer's
            return b""
        if token_id in self._added:
            return token.encode()
        if self._byte_of_char and all(c in self._byte_of_char for c in token):
            return bytes(self._byte_of_char[c] for c in token)
        if self._has_byte_tokens and len(token) == 6 and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        return token.replace(SPACE, " ").encode()


def chat_logprobs(entries: Sequence[TokenLogprob], texts: TokenTexts) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat completion."""
    content = [
        _token(entry.token_id, entry.logprob, texts)
        | {"top_logprobs": [_token(i, value, texts) for i, value in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(entries: Sequence[TokenLogprob], offsets: Sequence[int], texts: TokenTexts) -> dict[str, Any]:
    """``choices[].logprobs`` of a text completion; the drawn token is always among the alternatives."""
    tops = [{texts[i][0]: max(value, FLOOR) for i, value in (*e.top, (e.token_id, e.logprob))} for e in entries]
    return {
        "tokens": [texts[e.token_id][0] for e in entries],
        "token_logprobs": [max(e.logprob, FLOOR) for e in entries],
        "top_logprobs": tops,
        "text_offset": list(offsets),
    }


def echoed_logprobs(
    prompt: Sequence[int], entries: Sequence[TokenLogprob], detokenizer: Detokenizer, n: int, texts: TokenTexts
) -> dict[str, bytes]:
    """The items of each list of ``completion_logprobs`` for a prompt with ``n`` alternatives, as JSON.

    The first token has no log-probability, so ``entries`` begin with the second.
    """
    offsets = [0]
    for token in prompt[:-1]:
        offsets.append(offsets[-1] + len(detokenizer.push((token,))))
    cut = [TokenLogprob(entry.token_id, entry.logprob, entry.top[:n]) for entry in entries]
    fields = completion_logprobs(cut, offsets[1:], texts)
    first = {"tokens": texts[prompt[0]][0], "token_logprobs": None, "top_logprobs": None, "text_offset": offsets[0]}
    return {name: _items([first[name], *fields[name]]) for name in fields}


def behind_echo(echoed: dict[str, bytes], fields: dict[str, Any]) -> dict[str, msgspec.Raw]:
    """``choices[].logprobs`` that begin with an echo's items."""
    return {
        name: msgspec.Raw(b"[%b]" % b",".join([items, *map(_encode, fields[name])])) for name, items in echoed.items()
    }


class _PromptLogprob(msgspec.Struct, gc=False):
    """An entry of vLLM's ``prompt_logprobs``."""

    logprob: float
    rank: int | None
    decoded_token: str


def prompt_logprobs(entries: Sequence[TokenLogprob], n: int, texts: TokenTexts) -> msgspec.Raw:
    """vLLM's ``prompt_logprobs``, as JSON: per token of a prompt its alternatives by id; null for the first."""
    return msgspec.Raw(b"[%b]" % _items(chain((None,), (_known(entry, n, texts) for entry in entries))))


def _known(entry: TokenLogprob, n: int, texts: TokenTexts) -> dict[int, _PromptLogprob]:
    """The ``n`` best tokens and the token itself, whose rank is unknown if it is not among the reported ones."""
    token = entry.token_id
    rank = next((rank for rank, (other, _) in enumerate(entry.top, 1) if other == token), None)
    known = {token: _PromptLogprob(max(entry.logprob, FLOOR), rank, texts[token][0])}
    for rank, (token, value) in enumerate(entry.top[:n], 1):
        known[token] = _PromptLogprob(max(value, FLOOR), rank, texts[token][0])
    return known


def _items(values: Iterable[object]) -> bytes:
    """Items of a list as JSON, encoded one by one, because the encoder holds the interpreter lock."""
    return b",".join(map(_encode, values))


def _token(token_id: int, logprob: float, texts: TokenTexts) -> dict[str, Any]:
    text, raw = texts[token_id]
    return {"token": text, "logprob": max(logprob, FLOOR), "bytes": raw}
