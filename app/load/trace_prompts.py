"""Writes prompts of given numbers of tokens, from words that the server's /tokenize counts."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import uvloop

from app.inputs.prompts import Line
from app.load.run import request_json
from app.load.stream import open_session
from app.load.traces import BLOCK_TOKENS, TracedRequest

# Short words, most of which are one token each for every tokenizer of a large model.
WORDS = (
    *("the", "of", "and", "to", "in", "is", "it", "that", "was", "for", "on", "are"),
    *("with", "as", "at", "be", "this", "have", "from", "or", "by", "one", "not", "but"),
)
CACHED_BLOCKS = 4096


class TracePrompts:
    """The fields that each request of a trace adds to a body.

    A prompt is written when it is sent, which holds up the client for 0.1 to 0.2 ms per 1,000 words. ``counts`` are
    those of ``count_word_tokens``.
    """

    def __init__(self, requests: Sequence[TracedRequest], endpoint: str, counts: Sequence[int]) -> None:
        one, *two = counts
        self._requests, self._endpoint = requests, endpoint
        self._word_tokens = min(max(1, n - one) for n in two)  # of every word below, whatever precedes it
        self._words = [word for word, n in zip(WORDS, two, strict=True) if n - one == self._word_tokens] or WORDS[:1]
        self._overhead = max(0, one - self._word_tokens)  # such as the tokens of the chat template
        self._block_words = max(1, BLOCK_TOKENS // self._word_tokens)
        self._block: Callable[[str], list[str]] = lru_cache(CACHED_BLOCKS)(self._write_block)

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> dict[str, Any]:
        request = self._requests[index]
        n_words = max(1, (request.input_tokens - self._overhead) // self._word_tokens)
        words: list[str] = []
        for n in range(-(-n_words // self._block_words)):  # text after the last block is of this request alone
            words += self._block(f"block {request.blocks[n]}" if n < len(request.blocks) else f"request {index} {n}")
        body = Line(prompt=" ".join(words[:n_words])).body(self._endpoint)
        return body | {"max_tokens": request.output_tokens, "ignore_eos": True}

    def _write_block(self, name: str) -> list[str]:
        return random.Random(name).choices(self._words, k=self._block_words)


def count_word_tokens(
    url: str, endpoint: str, model: str, headers: Mapping[str, str], tls: ssl.SSLContext | None = None
) -> list[int]:
    """Return the tokens of a prompt of the first word, and of that word followed by each of ``WORDS``.

    ``url`` is that of /tokenize. Raises ConfigError if the server does not count tokens there.
    """

    needed = "the count of tokens that --trace needs"
    texts = [WORDS[0], *(f"{WORDS[0]} {word}" for word in WORDS)]
    bodies = [{"model": model, **Line(prompt=text).body(endpoint)} for text in texts]

    async def count() -> list[int]:
        async with open_session(tls) as session:
            ask = partial(request_json, session, "POST", url, headers, lambda found: int(found["count"]), needed)
            return list(await asyncio.gather(*map(ask, bodies)))

    return uvloop.run(count())
