"""What a simulated target writes: recorded answers, and for any other prompt a text made up from its hash.

An answer is a function of the prompt (a made-up one also of seed and choice, if the request samples), never of how the
text was drafted, batched or interrupted. Position decides which token comes, so a sequence that is prefilled
again goes on where it was.
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
COPIES = 0.5  # share of spans that repeat earlier text, prompt included: what drafting from text can find

Recording = tuple[list[int], list[int]]  # prompt, answer


def pack_recordings(recordings: Iterable[Recording]) -> bytes:
    """Recordings as they travel to the stages: msgpack of (prompt, answer) pairs of token ids."""
    return msgspec.msgpack.encode([(list(prompt), list(answer)) for prompt, answer in recordings])


class RecordedAnswers:
    """Answers by prompt.

    Args:
        vocab_size: tokens that made-up texts use.
        avoid: ids that made-up texts never use: they would end too early.
        recordings: from ``pack_recordings``; of several answers to one prompt the first counts.

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
        made_up = _MadeUp(prompt, params, self._vocab_size, avoid)
        return SimulatedAnswer(self._recorded.get(tuple(prompt), []), made_up)


class SimulatedAnswer:
    """The text behind one prompt: the recorded answer, then made-up text without end."""

    def __init__(self, recorded: Sequence[int], made_up: _MadeUp) -> None:
        self._recorded = recorded
        self._made_up = made_up

    def part(self, first: int, n: int) -> list[int]:
        """Tokens ``first`` to ``first + n - 1`` of the answer."""
        end, known = first + n, len(self._recorded)
        tokens = list(self._recorded[first:end])
        if end > known:
            tokens += self._made_up.part(max(0, first - known), end - known)
        return tokens


class _MadeUp:
    """Spans of random tokens, every second one copied from what stands before it."""

    def __init__(self, prompt: Sequence[int], params: SamplingParams, vocab_size: int, avoid: frozenset[int]) -> None:
        digest = hashlib.blake2b(np.asarray(prompt, np.int64).tobytes())
        digest.update(b"" if params.is_greedy else f"{params.seed},{params.choice}".encode())
        self._random = random.Random(digest.digest())
        self._vocab_size = vocab_size
        self._avoid = avoid
        self._n_prompt = len(prompt)
        self._text = list(prompt)

    def part(self, first: int, end: int) -> list[int]:
        """Tokens ``first`` to ``end - 1``."""
        while len(self._text) - self._n_prompt < end:
            self._text += self._span()
        return self._text[self._n_prompt + first : self._n_prompt + end]

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
