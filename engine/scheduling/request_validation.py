"""Refuses requests and methods that can never be served."""

from __future__ import annotations

from engine.errors import ConfigError, PromptTooLongError, RequestError
from engine.model.spec import ModelSpec
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.scheduling.sequence import Sequence
from engine.simulated.profile import SIMULATED
from engine.target_model.info import TargetInfo

ONLY_TEXT = (
    "a simulated target has no states to read; methods of text alone work: autoregressive, pld, anpd, suffix, rest, "
    "spectra-retrieval, combinations of them, and auto with such sources"
)


def check_prompt(sequence: Sequence, info: TargetInfo) -> None:
    """Refuse a sequence that can never be served.

    Raises:
        PromptTooLongError: prompt and ``max_tokens`` exceed the context.
        RequestError: the prompt is empty or holds ids outside the vocabulary, ``max_tokens`` leaves no token to emit,
            the method needs states that the target lacks, or the grammar cannot be enforced.
    """
    if missing := _missing(sequence.needs, info.spec):
        raise RequestError(f"method {sequence.request.method!r}: {missing}", "method")
    n, max_tokens, limit = sequence.n_prompt, sequence.request.params.max_tokens, info.max_model_len
    if n == 0:
        raise RequestError("the prompt is empty: give at least one token", "prompt")
    if n + max_tokens > limit:
        raise PromptTooLongError(
            f"this model's maximum context length is {limit} tokens; the prompt's {n} and max_tokens {max_tokens} "
            "exceed it",
            "max_tokens" if n < limit else "prompt",
        )
    if max_tokens < 1:
        raise RequestError(f"max_tokens is {max_tokens}; it must be at least 1", "max_tokens")
    if sequence.max_new < 1:
        raise RequestError(f"all of max_tokens {max_tokens} was emitted already; ask for more", "max_tokens")
    _check_grammar(sequence.request.params, info)
    size = info.spec.vocab_size
    if min(sequence.tokens) < 0 or max(sequence.tokens) >= size:
        wrong = next(token for token in sequence.tokens if not 0 <= token < size)
        raise RequestError(f"token id {wrong} is outside the vocabulary of {size}", "prompt")


def _check_grammar(params: SamplingParams, info: TargetInfo) -> None:
    if params.grammar is None:
        return
    if info.spec.family == SIMULATED:
        raise RequestError(
            "a simulated target replays recorded answers and cannot follow a grammar; leave it out", "grammar"
        )
    if not set(info.spec.eos_ids) & set(params.stop_ids):
        raise RequestError("a grammar is given, but stop_ids has no end-of-sequence token; add one", "grammar")


def check_needs(needs: Needs, spec: ModelSpec) -> None:
    """Refuse a method at the start if no stage can read back the states that it needs.

    Raises:
        ConfigError: the model has no such layer or head, or the target is simulated.
    """
    if missing := _missing(needs, spec):
        raise ConfigError(f"method: {missing}")


def _missing(needs: Needs, spec: ModelSpec) -> str:
    """Return what the target lacks of ``needs``, and what it has; "" if it lacks nothing."""
    if spec.family == SIMULATED:
        return "" if needs == Needs() else ONLY_TEXT
    layer = needs.hidden_layer
    if layer is not None and not 0 <= layer < spec.n_layers:
        return f"hidden_layer is {layer}; this model has layers 0 to {spec.n_layers - 1}"
    for place in needs.heads:
        if not (0 <= place[0] < spec.n_layers and 0 <= place[1] < spec.n_heads):
            return (
                f"heads contains {tuple(place)}; this model has (layer, head) pairs from (0, 0) to "
                f"({spec.n_layers - 1}, {spec.n_heads - 1})"
            )
    return ""
