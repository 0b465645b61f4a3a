"""The interface between the engine and the speculators: views and outcomes go out, branches come back.

The types belong to the engine, so that the decode loop receives speculators as instances and imports nothing upward.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from engine.request import Request
from engine.top_ids import NO_TOP_IDS
from engine.tree import ROOT, FloatArray, IntArray, TokenBuffer, TokenTree


@dataclass(slots=True)
class RequestView:
    """A request as its speculator sees it.

    The speculator pool owns the view and appends committed tokens to ``context`` before it calls ``observe``;
    speculators only read it.
    """

    request_id: int  # number of the sequence
    request: Request
    vocab_size: int
    context: TokenBuffer  # prompt + output so far; the last token is the root of the next tree

    @classmethod
    def of(cls, request_id: int, request: Request, vocab_size: int) -> RequestView:
        """Return the view of a new or resumed request: its context is the prompt and the output emitted before."""
        context = TokenBuffer([*request.prompt, *request.emitted], len(request.prompt) + request.params.max_tokens)
        return cls(request_id, request, vocab_size, context)

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)


class Branch(msgspec.Struct, frozen=True):
    """A drafted continuation of the context: a chain, or a tree when ``parents`` is given.

    Args:
        tokens: ``[n]``.
        source: the speculator; it proposed all nodes unless ``proposers`` is given.
        parents: ``[n]`` indices into ``tokens`` (-1 is the root), parents first.
        probe: the nodes are never accepted; the target's top ids after the last one are read back.
        q: ``[n, vocab]``, the distribution that each token was *independently sampled* from; None for tokens chosen by
            rank, score or rule.
        scores: ``[n]``, estimated probabilities of a node once its parent is accepted; combinations spend their nodes
            by them (``speculators.mixing.combined``).
        proposers: ``[n]`` names of the sources of each node, its owner first.
        reach: ``[n]`` path probabilities, if the source knows them.
    """

    tokens: Sequence[int]
    source: str
    parents: Sequence[int] | None = None
    probe: bool = False
    q: FloatArray | None = None
    scores: Sequence[float] | None = None
    proposers: Sequence[tuple[str, ...]] | None = None
    reach: Sequence[float] | None = None

    @property
    def above(self) -> Sequence[int]:
        """``parents``, or those of a chain."""
        return range(ROOT, len(self.tokens) - 1) if self.parents is None else self.parents


class Decision(NamedTuple):
    """Decision about one step of a request by a method that weighs gain against cost; takes few different values."""

    tier: str  # how expensive a draft is made
    reason: str
    reads_back: bool = True  # whether the step reads back the top ids that the method needs


class Draft(list[Branch]):
    """Branches of one request, with the method's decision about the step.

    Args:
        branches: best first.
        decision: of a method that decides about every step; it holds for all steps of a rest, too.
        rests: whether the request rests until ``settle`` returns it. Then the outcome of this draft's step and all
            later ones go to ``settle``, and the steps after this draft's have no nodes and no read-backs. A request can
            be asked earlier, because a lost draft starts no rest.
        drafts_next: whether the target's drafter, for a request that needs it and does not rest, drafts after the step.
    """

    __slots__ = ("decision", "drafts_next", "rests")

    def __init__(
        self,
        branches: Iterable[Branch] = (),
        decision: Decision | None = None,
        rests: bool = False,
        drafts_next: bool = True,
    ) -> None:
        super().__init__(branches)
        self.decision = decision
        self.rests = rests
        self.drafts_next = drafts_next


@dataclass(slots=True, frozen=True)
class Needs:
    """States that a speculator needs from the target in addition to tokens; the default reads nothing back."""

    probe_top_k: int = 0  # ids at the last node of every probe branch
    node_top_k: int = 0  # ids at the root and every node, rejected ones too
    prompt_top_k: int = 0  # ids at every prompt position
    hidden_layer: int | None = None  # hidden state after this layer, for every committed position
    heads: tuple[tuple[int, int], ...] = ()  # (layer, head): attention row of the last forwarded position
    top_logprobs: bool = False  # log-probabilities with every list of top ids
    hidden_dims: int = 0  # dimensions that the hidden state is projected to before it travels; 0: no projection
    drafter: bool = False  # drafts of the target's trained drafter
    drafts_first: bool = True  # whether that drafter drafts directly after the prompt

    def merge(self, other: Needs) -> Needs:
        """Return the smallest needs that cover both.

        Raises:
            ValueError: they have different hidden layers, or different projections of one.
        """
        layers = {layer for layer in (self.hidden_layer, other.hidden_layer) if layer is not None}
        if len(layers) > 1:
            raise ValueError(f"two speculators need hidden states of different layers: {sorted(layers)}")
        dims = {needs.hidden_dims for needs in (self, other) if needs.hidden_layer is not None}
        if len(dims) > 1:
            raise ValueError(f"two speculators need hidden states of different dimensions: {sorted(dims)}")
        return Needs(
            probe_top_k=max(self.probe_top_k, other.probe_top_k),
            node_top_k=max(self.node_top_k, other.node_top_k),
            prompt_top_k=max(self.prompt_top_k, other.prompt_top_k),
            hidden_layer=layers.pop() if layers else None,
            hidden_dims=dims.pop() if dims else 0,
            heads=tuple(dict.fromkeys(self.heads + other.heads)),
            top_logprobs=self.top_logprobs or other.top_logprobs,
            drafter=self.drafter or other.drafter,
            drafts_first=self.drafts_first and other.drafts_first,
        )


@dataclass(slots=True, frozen=True)
class Artefacts:
    """Hidden states and attention of the target for the positions that a step committed (PLD+)."""

    hidden: FloatArray | None = None  # [n_new_positions, d], by position, from 0 on
    attention: FloatArray | None = None  # [n_heads, n_positions], of the last forwarded position


class StepTime(NamedTuple):
    """Duration and size of a step in which all sequences decoded."""

    seconds: float  # of all stages together, without the drafter
    n_sequences: int
    n_rows: int  # roots and nodes
    context: float  # tokens before a root, on average
    n_read: int = 0  # rows whose top ids were read back
    draft_seconds: float = 0.0  # of the target's drafter


class Outcome(msgspec.Struct, frozen=True):
    """The target's answer to one step's tree, or to a prompt chunk (then ``tree`` is empty).

    ``tokens`` were committed: the accepted path, then the bonus token. A prompt chunk that is not the last commits
    none.
    """

    tokens: Sequence[int]
    tree: TokenTree
    accepted: Sequence[int] = ()  # nodes of the accepted path, root first
    top_ids: Mapping[int, Sequence[int]] = NO_TOP_IDS  # node (-1 root) -> ids, best first; a TopIds from the engine
    prompt_top_ids: IntArray | None = None  # [chunk, k]
    prompt_top_logprobs: FloatArray | None = None  # [chunk, k]
    prompt_start: int = 0  # position of the chunk's first token
    n_read: int = 0  # tokens of the chunk that were not cached
    artefacts: Artefacts | None = None
    step: StepTime | None = None  # one object for all outcomes of a step; None for a step with prompt chunks
    draft: Branch | None = None  # of the target's drafter, after the last token
    draft_seconds: float = 0.0  # that it took, of a draft for several sequences this one's share

    def top_ids_after(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the target's top ids after the node that ``tokens`` lead to; empty if it was not scored."""
        node = self.tree.find(tokens)
        return () if node is None else self.top_ids.get(node, ())


@runtime_checkable
class Speculator(Protocol):
    """A drafting method. One instance serves many requests; per-request state is keyed by ``request_id``.

    A subclass implements ``propose``, and overrides the other methods that it needs.
    """

    name: str
    needs: Needs

    def begin(self, view: RequestView) -> None:
        """Add a request; its context is the prompt."""
        return

    @abstractmethod
    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return branches for the next step, best first, of at most ``budget`` nodes together (probes count)."""

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Learn from the target's answer; ``view.context`` already holds the committed tokens."""
        return

    def end(self, view: RequestView) -> None:
        """Drop all state of the request; called once, also after a cancel or an error."""
        return


@runtime_checkable
class BatchSpeculator(Speculator, Protocol):
    """A method that drafts for many requests at once, such as a drafter with weights."""

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """Return the branches of ``propose`` for several requests, in order."""


@runtime_checkable
class BatchObserver(Protocol):
    """A method that observes the outcomes of many requests at once."""

    def observe_batch(self, views: Sequence[RequestView], outcomes: Sequence[Outcome]) -> None:
        """Do what ``observe`` does for several requests, in order; all contexts already hold the committed tokens."""


@runtime_checkable
class Settling(Protocol):
    """A method that works after the next step was sent, and lets requests rest (``Draft.rests``).

    Without it, ``observe`` gets the outcomes of a resting request, and its rest lasts as long as the request.
    """

    def settle(self, views: Sequence[RequestView], outcomes: Sequence[Outcome], seconds: float) -> Collection[int]:
        """Do the work that changes no tree of the step that was just sent; return the requests whose rest ends.

        An actor's answer takes time, so a request can have more outcomes here after its rest has ended.

        Args:
            views: resting requests with an outcome; their contexts already hold the committed tokens.
            outcomes: of ``views``, in order.
            seconds: of the host between the answer and the send (``DraftPool.settle``).
        """


class DraftPool(Protocol):
    """The speculators of all live requests, in this process or in an actor; called once per step."""

    def needs(self, method: str, request: Request | None = None) -> Needs:
        """Return the needs of a method, or of a request for it; raise UnknownMethodError."""

    def can_settle(self, method: str) -> bool:
        """Whether a method works after the send, too; raise UnknownMethodError."""

    def begin(self, request_id: int, request: Request, vocab_size: int) -> None:
        """Add a request to the speculator of ``request.method``."""

    def advance(self, outcomes: Sequence[tuple[int, Outcome]], budgets: Mapping[int, int]) -> dict[int, list[Branch]]:
        """Observe outcomes, then return drafts for the requests in ``budgets``.

        Nothing is read back in the next step of a request without an entry, which has no speculator here. A ``Draft``
        can turn reading back off, too.
        """

    def settle(self, outcomes: Sequence[tuple[int, Outcome]], seconds: float) -> Collection[int]:
        """Do the work that changes no tree of the step that was just sent; called once it is sent.

        Args:
            outcomes: of requests that rest; their tokens are not in the contexts yet.
            seconds: of the host between the answer and the send: ``advance``, and all work that a step takes anyway.

        Returns:
            The requests whose rest ends. They are reported and asked before the send from the next answer on. Requests
            that are not live are among them, because nothing else could end their rest.
        """

    def end(self, request_id: int) -> None:
        """Remove a request; an unknown one is ignored."""

    @property
    def n_live(self) -> int:
        """Requests that have begun and not ended."""
