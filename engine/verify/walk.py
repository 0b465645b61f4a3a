"""The walk down a step's token trees: where each sequence is, which tokens it commits, when it stops, what went wrong.

There is one walk. ``Draws`` tell it which token is drawn at which row of the logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from engine.device import Array
from engine.events import NOT_FINITE, TokenLogprob
from engine.grammar.state import GrammarState
from engine.sampling.history import History
from engine.sampling.keys import NoiseKey
from engine.sampling.logprobs import as_logprobs
from engine.sampling.params import SamplingParams
from engine.sampling.shift import is_shifted
from engine.tree import ROOT, TokenTree
from engine.upload import Upload
from engine.verify.rules import Decision, match


@dataclass(slots=True)
class WalkItem:
    """One sequence of the batch; the stage fills it in from the step."""

    tree: TokenTree
    first_row: int  # row of the root in the logits; node i has row first_row + 1 + i
    params: SamplingParams
    history: History | None  # required by penalties and min_tokens; the walk updates it
    n_context: int  # committed tokens; the token drawn at the root gets this position
    max_new: int | None = None  # draw at most so many tokens
    grammar: GrammarState | None = None  # required by a grammar; the walk updates it

    @property
    def is_plain(self) -> bool:
        """Whether the argmax of raw logits decides at every node."""
        return self.params.is_greedy and self.grammar is None and not is_shifted(self.params, self.history)

    def key(self, depth: int) -> NoiseKey:
        """Return the key of the random numbers at a node of this depth; the root has depth 0."""
        return self.params.seed, self.params.choice, self.n_context + depth

    def noise_key(self, depth: int) -> NoiseKey | None:
        """Return the key of the Gumbel row at this depth; None where no noise decides."""
        return None if self.params.is_greedy or self.params.rejects else self.key(depth)


@dataclass(slots=True)
class Walk:
    """What a step commits for one sequence."""

    accepted: list[int] = field(default_factory=list)  # nodes of the accepted path, root first
    tokens: list[int] = field(default_factory=list)  # the accepted nodes' tokens, then the bonus token if any
    logprobs: list[TokenLogprob] | None = None  # one per token, if the request asks for them
    error: str = ""  # why the text cannot continue: its grammar allows nothing, or the logits are NaN or infinite

    @property
    def node(self) -> int:
        """The last accepted node, or ``ROOT``."""
        return self.accepted[-1] if self.accepted else ROOT

    def rows(self, item: WalkItem) -> list[int]:
        """Return the rows of the logits that the tokens were drawn from."""
        return [item.first_row + 1 + node for node in [ROOT, *self.accepted][: len(self.tokens)]]


Pair = tuple[WalkItem, Walk]


class Draws(ABC):
    """Draws the tokens of some walks: planned on the host, begun on the device, read on the host.

    Args:
        pairs: the walks.
        vocab: width of the logits.
        upload: carries arrays to the device; send it before ``begin``.
    """

    def __init__(self, pairs: Sequence[Pair], vocab: int, upload: Upload) -> None:
        self.pairs, self.vocab = pairs, vocab
        self.errors: dict[int, str] = {}  # why a text cannot continue at a row of the logits, visited or not

    def begin(self, logits: Tensor) -> list[Tensor]:
        """Begin with ``logits`` ``[rows, vocab]`` of any float dtype, unchanged; return the tensors to fetch."""
        return []

    def receive(self, arrays: Iterator[Array]) -> None:  # noqa: B027  # visited rows have nothing to fetch
        """Take the fetched tensors of ``begin`` from ``arrays``."""

    @abstractmethod
    def decide(self, pairs: Sequence[Pair]) -> list[Decision]:
        """Return the accepted child (or None) and the drawn token at the current node of each walk."""

    @abstractmethod
    def read_logprobs(self, rows: list[int], tokens: list[int], k: int) -> Sequence[Array]:
        """Return log-probabilities of ``tokens`` at ``rows``, those of at least ``k`` best ids, and these ids."""


def match_tokens(pairs: Sequence[Pair], tokens: Sequence[int]) -> list[Decision]:
    """Return the decisions where a child is accepted if it carries the drawn token."""
    return [(match(item.tree, walk.node, token), token) for (item, walk), token in zip(pairs, tokens, strict=True)]


def current_rows(pairs: Sequence[Pair]) -> list[int]:
    """Return the rows of the logits at which the walks draw next."""
    return [item.first_row + 1 + walk.node for item, walk in pairs]


def walk_trees(draws: Draws) -> None:
    """Walk every tree to its end; update histories and grammars on the way."""
    pairs = active = draws.pairs
    while active:
        decisions = draws.decide(active)
        active = [pair for pair, decision in zip(active, decisions, strict=True) if _commit(*pair, *decision)]
    _add_logprobs([pair for pair in pairs if pair[0].params.logprobs is not None], draws)
    if draws.errors:
        for item, walk in pairs:
            errors = [draws.errors[row] for row in walk.rows(item) if row in draws.errors]
            walk.error = NOT_FINITE if NOT_FINITE in errors else next(iter(errors), "")


def _commit(item: WalkItem, walk: Walk, child: int | None, token: int) -> bool:
    """Record one drawn token; return whether the walk continues at ``child``."""
    walk.tokens.append(token)
    if item.history is not None:
        item.history.add(token)
    if item.grammar is not None:
        item.grammar.advance(token)
    if child is None:
        return False
    walk.accepted.append(child)
    return token not in item.params.stop_ids and len(walk.tokens) != item.max_new


def _add_logprobs(pairs: Sequence[Pair], draws: Draws) -> None:
    """Fill in ``logprobs`` of the walks from the raw rows that they visited, in one go."""
    if not pairs:
        return
    rows = [row for item, walk in pairs for row in walk.rows(item)]
    tokens = [token for _, walk in pairs for token in walk.tokens]
    ks = [item.params.logprobs or 0 for item, walk in pairs for _ in walk.tokens]
    entries = iter(as_logprobs(tokens, ks, *draws.read_logprobs(rows, tokens, max(ks))))
    for _, walk in pairs:
        walk.logprobs = [next(entries) for _ in walk.tokens]
