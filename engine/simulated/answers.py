"""The texts of a simulated target: recorded answers, and for any other prompt a text made up from its hash.

An answer is a function of the prompt (a made-up one also of seed and choice, if the request samples), never of drafts,
batches or interruptions. Position determines the token, so a sequence that is prefilled again continues identically.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from engine.errors import ConfigError
from engine.sampling.params import SamplingParams

FRESH, COPIED = (4, 12), (8, 24)  # fewest and most tokens of a span of made-up text
COPIES = 0.5  # share of spans that repeat earlier text, prompt included, for lookups to find

Recording = tuple[list[int], list[int]]  # prompt, answer


def pack_recordings(recordings: Iterable[Recording]) -> bytes:
    """Recordings as they travel to the stages: msgpack of (prompt, answer) pairs of token ids."""
    return msgspec.msgpack.encode([(list(prompt), list(answer)) for prompt, answer in recordings])


class RecordedAnswers:
    """Answers by prompt.

    Args:
        vocab_size: tokens that made-up texts use.
        avoid: ids that made-up texts never use: they would end too early.
        recordings: from ``pack_recordings``; the first of several answers to one prompt is used.

    Raises:
        ConfigError: a recorded token is outside the vocabulary.
    """

    def __init__(self, vocab_size: int, avoid: Sequence[int] = (), recordings: bytes = b"") -> None:
        known = msgspec.msgpack.decode(recordings, type=list[Recording]) if recordings else []
        self._recorded: dict[tuple[int, ...], list[int]] = {}
        for prompt, answer in known:
            if any(not 0 <= token < vocab_size for token in (*prompt, *answer)):
                raise ConfigError(f"a recorded answer holds a token outside the vocabulary of {vocab_size}")
            self._recorded.setdefault(tuple(prompt), answer)
        self._vocab_size = vocab_size
        self._avoid = frozenset(avoid)

    def __len__(self) -> int:
        """Prompts with a recorded answer."""
        return len(self._recorded)

    def to(self, prompt: Sequence[int], params: SamplingParams) -> SimulatedAnswer:
        """The answer to a prompt; ``params`` give seed, choice and the stop ids, which made-up text avoids."""
        avoid = self._avoid | set(params.stop_ids)
        return SimulatedAnswer(self._recorded.get(tuple(prompt), []), prompt, params, self._vocab_size, avoid)


class SimulatedAnswer:
    """The answer to one prompt: the recorded text, then made-up text without end.

    Made-up text consists of spans of random tokens; every second span is copied from the prompt and made-up text.
    """

    def __init__(
        self,
        recorded: Sequence[int],
        prompt: Sequence[int],
        params: SamplingParams,
        vocab_size: int,
        avoid: frozenset[int],
    ) -> None:
        digest = hashlib.blake2b(np.asarray(prompt, np.int64).tobytes())
        digest.update(b"" if params.is_greedy else f"{params.seed},{params.choice}".encode())
        self._random = random.Random(digest.digest())
        self._recorded = recorded
        self._vocab_size = vocab_size
        self._avoid = avoid
        self._n_prompt = len(prompt)
        self._text = list(prompt)  # and made-up text, as far as it was read

    def part(self, first: int, n: int) -> list[int]:
        """Tokens ``first`` to ``first + n - 1`` of the answer."""
        end, n_recorded = first + n, len(self._recorded)
        tokens, offset = list(self._recorded[first:end]), self._n_prompt - n_recorded
        if end > n_recorded:
            while len(self._text) < offset + end:
                self._text += self._span()
            tokens += self._text[offset + max(first, n_recorded) : offset + end]
        return tokens

    def _span(self) -> list[int]:
        if self._random.random() < COPIES:
            place = self._random.randrange(len(self._text))
            copied = self._text[place : place + self._random.randint(*COPIED)]
            return [token for token in copied if token not in self._avoid] or [self._token()]
        return [self._token() for _ in range(self._random.randint(*FRESH))]

    def _token(self) -> int:
        while True:
            token = self._random.randrange(self._vocab_size)
            if token not in self._avoid:
                return token
