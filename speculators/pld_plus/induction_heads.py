"""Finds the attention heads that copy, which PLD+ (a) reads (arXiv 2412.01447, section 4.2.1).

For each generated token that is in the context already, the occurrence with the longest matching suffix counts as its
source. A head hits when the position that predicted the token attends to the source more than to any other position.
The heads with the most hits are written to a JSON file with the model's hash: they mean nothing in another model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from engine.tree import IntArray

Heads = tuple[tuple[int, int], ...]
Natural = Annotated[int, msgspec.Meta(ge=0)]


class HeadScore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A head that was kept, and how often it hit."""

    layer: Natural
    head: Natural  # query head
    rate: float  # hits per counted token, 0 to 1


class HeadsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Contents of a heads file."""

    format: Literal["spectra-heads"] = "spectra-heads"
    version: Literal[1] = 1
    model: str  # hash of the model in which the heads were found
    n_layers: int
    n_heads: int  # query heads per layer
    n_tokens: int  # generated tokens that were counted
    heads: Annotated[list[HeadScore], msgspec.Meta(min_length=1)]  # kept, best first
    hits: list[list[int]]  # [n_layers][n_heads], of all heads

    @property
    def pairs(self) -> Heads:
        return tuple((one.layer, one.head) for one in self.heads)


class HeadCounter(Speculator):
    """Drafts nothing and counts the hits of every head; ``n_heads`` are query heads per layer."""

    name = "head-counter"

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.needs = Needs(heads=tuple((layer, head) for layer in range(n_layers) for head in range(n_heads)))
        self.n_tokens = 0  # generated tokens that have a source
        self.hits: npt.NDArray[np.int64] = np.zeros((n_layers, n_heads), np.int64)
        self.source_attention = np.zeros((n_layers, n_heads))  # sums of the attention to sources

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return no draft: the attention of every token is read in a step of its own."""
        return []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        attention = None if outcome.artefacts is None else outcome.artefacts.attention
        if attention is None or len(outcome.tokens) != 1:
            return
        source = copied_from(view.context.view)
        if source is not None:
            self.n_tokens += 1
            self.hits += (attention.argmax(axis=1) == source).reshape(self.hits.shape)
            self.source_attention += attention[:, source].reshape(self.hits.shape)


def copied_from(context: IntArray) -> int | None:
    """Return the earlier position of the last token of ``context`` ``[t]`` with the longest matching suffix.

    Of several it is the latest; None if the token does not occur earlier.
    """
    ends = np.flatnonzero(context[:-1] == context[-1])
    if len(ends) == 0:
        return None
    n = 1  # matching tokens so far
    while len(ends) > 1:
        longer = ends[ends >= n]
        longer = longer[context[longer - n] == context[-1 - n]]
        if len(longer) == 0:
            break
        ends, n = longer, n + 1
    return int(ends[-1])


def best_heads(counter: HeadCounter, keep: int) -> list[HeadScore]:
    """Return at most ``keep`` heads with the most hits, best first; ties go to the head with more attention to sources.

    Heads without a hit are left out, unless no head has one.
    """
    hits, attention = counter.hits.ravel(), counter.source_attention.ravel()
    order = [int(flat) for flat in np.lexsort((-attention, -hits)) if hits[flat] or not hits.any()][:keep]
    places = [divmod(flat, counter.hits.shape[1]) for flat in order]
    n_tokens = max(1, counter.n_tokens)
    return [HeadScore(layer, head, round(int(counter.hits[layer, head]) / n_tokens, 6)) for layer, head in places]


def write_heads(path: Path, found: HeadsFile) -> None:
    """Write a heads file, atomically; raise ConfigError if the path cannot be written."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"heads file {path} cannot be written: {error.strerror}") from error


def read_heads(path: Path, model: str, n_layers: int, n_heads: int) -> HeadsFile:
    """Return the heads file at ``path`` for a model with this hash and size.

    Raises:
        ConfigError: the file cannot be read, is not a heads file of this version, or belongs to another model.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=HeadsFile)
    except OSError as error:
        raise ConfigError(f"heads file {path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not a heads file: {error}") from error
    problem = ""
    if found.model != model:
        problem = f"belongs to another model (hash {found.model}, this one has {model})"
    elif (found.n_layers, found.n_heads) != (n_layers, n_heads):
        problem = f"is for {found.n_layers} layers of {found.n_heads} heads, the model has {n_layers} of {n_heads}"
    elif len(set(found.pairs)) < len(found.heads):
        problem = "has a head twice"
    elif not all(layer < n_layers and head < n_heads for layer, head in found.pairs):
        problem = f"has a head beyond layer {n_layers - 1} or head {n_heads - 1} among {found.pairs}"
    if problem:
        raise ConfigError(f"heads file {path} {problem}; 'spectra heads find' makes one")
    return found
