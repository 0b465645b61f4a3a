"""Which attention heads copy: the heads that PLD+ (a) reads, found by counting (arXiv 2412.01447, section 4.2.1).

An *induction head* finds an earlier occurrence of what is being written and looks at the token that came next. For
every generated token that occurs in the context before it, take the occurrence with the longest matching suffix: there
it was copied from, if it was. A head *hits* when, in the position that predicted the token, it looks at that occurrence
more than anywhere else. The heads with the most hits are kept, and written to a small JSON file with the model's hash,
for another model's heads are elsewhere.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.tree import IntArray

FORMAT = "spectra-heads"
VERSION = 1

Heads = tuple[tuple[int, int], ...]


class HeadScore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kept head."""

    layer: int  # from 0
    head: int  # query head, from 0
    rate: float  # hits per counted token, 0 to 1


class HeadsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a heads file holds."""

    format: str = FORMAT
    version: int = VERSION
    model: str  # hash of the model the heads were found in
    n_layers: int
    n_heads: int  # query heads per layer
    n_tokens: int  # generated tokens that were counted
    heads: list[HeadScore]  # kept, best first
    hits: list[list[int]]  # [n_layers][n_heads], all of them

    @property
    def pairs(self) -> Heads:
        """The kept heads as (layer, head)."""
        return tuple((one.layer, one.head) for one in self.heads)


class HeadCounter:
    """A speculator that drafts nothing and counts hits while the target writes.

    Args:
        n_layers: of the target.
        n_heads: query heads per layer.
    """

    name = "head-counter"

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.needs = Needs(heads=tuple((layer, head) for layer in range(n_layers) for head in range(n_heads)))
        self.n_tokens = 0  # generated tokens that occur in the context before them
        self.hits: npt.NDArray[np.int64] = np.zeros((n_layers, n_heads), np.int64)
        self.looked = np.zeros((n_layers, n_heads))  # sum of the attention paid to the source

    def begin(self, view: RequestView) -> None:
        """Nothing to remember."""

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Never a draft: every token gets a step of its own, and so its attention."""
        return []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Count the heads that looked where the token came from."""
        attention = None if outcome.artefacts is None else outcome.artefacts.attention
        if attention is None or len(outcome.tokens) != 1:
            return
        source = copied_from(view.context.view)
        if source is not None:
            self.n_tokens += 1
            self.hits += (attention.argmax(axis=1) == source).reshape(self.hits.shape)
            self.looked += attention[:, source].reshape(self.hits.shape)

    def end(self, view: RequestView) -> None:
        """Nothing to drop."""


def copied_from(context: IntArray) -> int | None:
    """The earlier position of the last token behind the longest matching suffix, the latest of several; or None.

    ``context`` ``[t]`` int32.
    """
    ends = np.flatnonzero(context[:-1] == context[-1])
    if len(ends) == 0:
        return None
    n = 1  # tokens that match so far
    while len(ends) > 1:
        longer = ends[ends >= n]
        longer = longer[context[longer - n] == context[-1 - n]]
        if len(longer) == 0:
            break
        ends, n = longer, n + 1
    return int(ends[-1])


def best_heads(counter: HeadCounter, keep: int) -> list[HeadScore]:
    """At most ``keep`` heads with the most hits, best first; among equals the head that looked there more.

    Heads that never hit are left out, unless none did: a model without induction heads still gets some.
    """
    hits, looked = counter.hits.ravel(), counter.looked.ravel()
    order = [int(flat) for flat in np.lexsort((-looked, -hits)) if hits[flat] or not hits.any()][:keep]
    n_tokens = max(1, counter.n_tokens)
    places = [divmod(flat, counter.hits.shape[1]) for flat in order]
    return [HeadScore(layer, head, round(int(counter.hits[layer, head]) / n_tokens, 6)) for layer, head in places]


def write_heads(path: Path, found: HeadsFile) -> None:
    """Write a heads file; a reader never sees half of one.

    Raises:
        ConfigError: it cannot be written there.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"heads file {path} cannot be written: {error.strerror}") from error


def read_heads(path: Path, model: str, n_layers: int, n_heads: int) -> HeadsFile:
    """The heads file at ``path``, checked against the model that is to use it.

    Raises:
        ConfigError: it cannot be read, is no heads file, is of another version or model, or names heads that the
            model lacks; the message names the file.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=HeadsFile)
    except OSError as error:
        raise ConfigError(f"heads file {path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not a heads file: {error}") from error
    wrong = _wrong(found, model, n_layers, n_heads)
    if wrong:
        raise ConfigError(f"heads file {path} {wrong}; 'spectra heads find' makes one")
    return found


def _wrong(found: HeadsFile, model: str, n_layers: int, n_heads: int) -> str:
    """What is wrong with a decoded heads file; empty if nothing is."""
    if found.format != FORMAT:
        return f"is of format {found.format!r}, not {FORMAT!r}"
    if found.version != VERSION:
        return f"is of version {found.version}; this program reads version {VERSION}"
    if found.model != model:
        return f"belongs to another model (hash {found.model}, this one has {model})"
    if (found.n_layers, found.n_heads) != (n_layers, n_heads):
        return f"is for {found.n_layers} layers of {found.n_heads} heads, the model has {n_layers} of {n_heads}"
    if not found.heads:
        return "names no head"
    if len(set(found.pairs)) < len(found.heads):
        return "names a head twice"
    outside = [one for one in found.pairs if not (0 <= one[0] < n_layers and 0 <= one[1] < n_heads)]
    return f"names head {outside[0]}, which the model does not have" if outside else ""
