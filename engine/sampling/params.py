"""Sampling parameters of one request, already checked at the edge."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from engine.grammar.grammar import Grammar
from engine.tree import FloatArray

LEAST_TEMPERATURE = 1e-5  # logits divided by less need not be finite; the draw would be the argmax anyway

VerificationRule = Literal["coupled", "rejection"]  # of drafted tokens; rules: engine.verify.rules


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """How the target's distribution becomes tokens; immutable, and small enough to travel with the request.

    ``temperature`` 0 means greedy; a value below ``LEAST_TEMPERATURE`` becomes 0. ``top_k`` 0 means no limit.
    Penalties follow Hugging Face (repetition: prompt and output) and OpenAI (presence, frequency: output only).
    """

    max_tokens: int = 128
    min_tokens: int = 0  # no stop id can be drawn before
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    allowed_ids: tuple[int, ...] = ()  # only these can be drawn; (): all
    bad_words: tuple[tuple[int, ...], ...] = ()  # runs of ids that the output never has
    seed: int = 0  # 64 bits, unsigned
    choice: int = 0  # index among n answers to one request: part of the noise key
    stop_ids: tuple[int, ...] = ()  # end the text; includes EOS unless the request ignores it
    stop: tuple[str, ...] = ()  # strings that end the text, not returned
    logprobs: int | None = None  # None: none; k: the drawn token's and the k best
    prompt_logprobs: int | None = None  # the same of the prompt's tokens
    verification: VerificationRule = "coupled"
    grammar: Grammar | None = None  # the output must match it; needs EOS among ``stop_ids``

    def __post_init__(self) -> None:
        """Replace temperatures that are too small to divide by with 0."""
        if 0.0 != self.temperature < LEAST_TEMPERATURE:
            msgspec.structs.force_setattr(self, "temperature", 0.0)

    @cached_property
    def bias(self) -> tuple[npt.NDArray[np.int64], FloatArray]:
        """``logit_bias`` as arrays made once: ids ``[n]`` and amounts to add ``[n]``; read-only."""
        n = len(self.logit_bias)
        return np.fromiter(self.logit_bias, np.int64, n), np.fromiter(self.logit_bias.values(), np.float32, n)

    @property
    def is_greedy(self) -> bool:
        """Whether the argmax decides."""
        return self.temperature == 0.0

    @property
    def rejects(self) -> bool:
        """Whether drafts are independent draws from a distribution ``q``, accepted with ``min(1, p/q)``."""
        return self.verification == "rejection" and not self.is_greedy

    @property
    def truncates(self) -> bool:
        """Whether top-k, top-p or min-p may drop a token."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether processing depends on the tokens before a position."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @cached_property
    def without_minimum(self) -> SamplingParams:
        """These parameters without ``min_tokens``, made once."""
        return msgspec.structs.replace(self, min_tokens=0) if self.min_tokens else self

    @cached_property
    def draw_rules(self) -> tuple[float, float, float, float]:
        """Temperature, top-k, top-p and the logarithm of min-p, as kernels read them; greedy rows have no limits."""
        if self.is_greedy:
            return 0.0, 0.0, 1.0, -math.inf
        return self.temperature, self.top_k, self.top_p, math.log(self.min_p) if self.min_p > 0.0 else -math.inf

    @property
    def remembers(self) -> bool:
        """Whether processing needs a `History`: a draw depends on earlier tokens."""
        return self.has_penalties or self.min_tokens > 0 or any(len(word) > 1 for word in self.bad_words)

    @cached_property
    def needs_text(self) -> bool:
        """Whether a draw depends on more than the logits: on earlier tokens, remembered or parsed."""
        return self.remembers or self.grammar is not None
