"""A walk down one token tree: what it is given, what it commits, and how it takes a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.events import TokenLogprob
from engine.grammar.state import GrammarState
from engine.sampling.history import History
from engine.sampling.keys import NoiseKey
from engine.sampling.params import SamplingParams
from engine.sampling.shift import is_shifted
from engine.tree import ROOT, TokenTree
from engine.verify.rules import match


@dataclass(slots=True)
class WalkItem:
    """One sequence of the batch; the stage fills it in from the step."""

    tree: TokenTree
    first_row: int  # row of the root in the logits; node i has row first_row + 1 + i
    params: SamplingParams
    history: History | None  # needed if params have penalties or min_tokens; updated by the walk
    n_context: int  # committed tokens; the token drawn at the root gets this position
    max_new: int | None = None  # draw at most so many tokens
    grammar: GrammarState | None = None  # needed if params have a grammar; updated by the walk

    @property
    def is_plain(self) -> bool:
        """Whether the argmax of raw logits decides at every node."""
        return self.params.is_greedy and self.grammar is None and not is_shifted(self.params, self.history)

    @property
    def rejects(self) -> bool:
        """Whether drafts are accepted with ``min(1, p/q)``."""
        return self.params.verification == "rejection" and not self.params.is_greedy

    def key(self, depth: int) -> NoiseKey:
        """Of the random numbers behind a node of this depth, 0 the root."""
        return self.params.seed, self.params.choice, self.n_context + depth

    def noise_key(self, depth: int) -> NoiseKey | None:
        """Of the Gumbel row there; None where no noise decides."""
        return None if self.params.is_greedy or self.rejects else self.key(depth)


@dataclass(slots=True)
class Walk:
    """What a step commits for one sequence."""

    accepted: list[int] = field(default_factory=list)  # nodes of the accepted path, root first
    tokens: list[int] = field(default_factory=list)  # the accepted nodes' tokens, then the bonus token if any
    logprobs: list[TokenLogprob] | None = None  # one per token, if the request asks for them
    error: str = ""  # why the text cannot go on: its grammar allows nothing, or the logits are NaN or infinite

    @property
    def node(self) -> int:
        """Where it stands."""
        return self.accepted[-1] if self.accepted else ROOT

    def rows(self, item: WalkItem) -> list[int]:
        """Rows of the logits that its tokens were drawn from."""
        return [item.first_row + 1 + node for node in [ROOT, *self.accepted][: len(self.tokens)]]


Pair = tuple[WalkItem, Walk]


def commit(item: WalkItem, walk: Walk, child: int | None, token: int) -> bool:
    """Record one drawn token; True when the walk is over."""
    walk.tokens.append(token)
    if item.history is not None:
        item.history.add(token)
    if item.grammar is not None:
        item.grammar.advance(token)
    if child is None:
        return True
    walk.accepted.append(child)
    return token in item.params.stop_ids or len(walk.tokens) == item.max_new


def follow(item: WalkItem, walk: Walk, token_of: Callable[[int], int]) -> None:
    """Walk to the end along the tokens drawn at the rows."""
    node: int | None = ROOT
    while node is not None:
        token = token_of(item.first_row + 1 + node)
        child = match(item.tree, node, token)
        node = None if commit(item, walk, child, token) else child
