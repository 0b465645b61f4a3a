"""Writes prompts of given numbers of tokens, from words that the server's /tokenize measures."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import aiohttp
import msgspec
import uvloop

from app.inputs.prompts import Line
from app.load.stream import open_session
from app.load.traces import BLOCK_TOKENS, TracedRequest
from engine.errors import ConfigError

# Short words, most of which are one token each for every tokenizer of a large model.
WORDS = (
    *("the", "of", "and", "to", "in", "is", "it", "that", "was", "for", "on", "are"),
    *("with", "as", "at", "be", "this", "have", "from", "or", "by", "one", "not", "but"),
)
SAMPLE_WORDS = 128
CACHED_BLOCKS = 4096
TOKENIZE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class WordCosts:
    """The tokens that text of some words has; every word of ``words`` adds as many, whatever precedes it."""

    words: Sequence[str]
    tokens_per_word: int
    overhead: int  # tokens of a prompt that are no words, such as those of the chat template


class TracePrompts:
    """The fields that each request of a trace adds to a body; a prompt is written when it is sent."""

    def __init__(self, requests: Sequence[TracedRequest], costs: WordCosts, endpoint: str) -> None:
        self._requests, self._costs, self._endpoint = requests, costs, endpoint
        self._block: Callable[[str], list[str]] = lru_cache(CACHED_BLOCKS)(self._write_block)

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> dict[str, Any]:
        request = self._requests[index]
        n_words = max(1, (request.input_tokens - self._costs.overhead) // self._costs.tokens_per_word)
        names = [f"block {block}" for block in request.blocks]
        words: list[str] = []
        while len(words) < n_words:  # text after the last block is of this request alone
            n = len(words) // self._words_per_block
            words += self._block(names[n] if n < len(names) else f"request {index} {n}")
        body = Line(prompt=" ".join(words[:n_words])).body(self._endpoint)
        return body | {"max_tokens": request.output_tokens, "ignore_eos": True}

    @property
    def _words_per_block(self) -> int:
        return max(1, BLOCK_TOKENS // self._costs.tokens_per_word)

    def _write_block(self, name: str) -> list[str]:
        return random.Random(name).choices(self._costs.words, k=self._words_per_block)


def measure_words(
    url: str, endpoint: str, model: str, headers: Mapping[str, str], tls: ssl.SSLContext | None = None
) -> WordCosts:
    """Return the words that add the fewest tokens to a prompt; ``url`` is that of /tokenize.

    Raises ConfigError if the server does not count tokens there.
    """

    async def counts(session: aiohttp.ClientSession, texts: Sequence[str]) -> list[int]:
        async def count(text: str) -> int:
            body = {"model": model, **Line(prompt=text).body(endpoint)}
            async with session.post(url, json=body, headers=headers, timeout=timeout) as answer:
                if answer.status != 200:
                    raise ConfigError(f"--trace needs POST {url}, which answers with status {answer.status}")
                return int(msgspec.json.decode(await answer.read())["count"])

        timeout = aiohttp.ClientTimeout(TOKENIZE_TIMEOUT_S)
        return list(await asyncio.gather(*map(count, texts)))

    async def measure() -> WordCosts:
        async with open_session(tls) as session:
            one, *several = await counts(session, [WORDS[0], *(f"{WORDS[0]} {word}" for word in WORDS)])
            least = min(max(1, n - one) for n in several)
            words = [word for word, n in zip(WORDS, several, strict=True) if n - one == least] or WORDS[:1]
            sample = " ".join(words[i % len(words)] for i in range(SAMPLE_WORDS))
            return WordCosts(words, least, max(0, (await counts(session, [sample]))[0] - SAMPLE_WORDS * least))

    try:
        return uvloop.run(measure())
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise ConfigError(
            f"--trace needs POST {url}, which does not answer: {error or type(error).__name__}"
        ) from error
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"--trace needs POST {url}, which answers without a count of tokens") from error
