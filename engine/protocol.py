"""What crosses the border between the engine and the speculators.

The engine hands out request views and outcomes, speculators hand back branches. The types live at the bottom so that
the decode loop receives speculators as instances and imports nothing upward.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from engine.request import Request
from engine.token_buffer import TokenBuffer
from engine.top_ids import NO_TOP_IDS
from engine.tree import ROOT, FloatArray, IntArray, TokenTree


@dataclass(slots=True)
class RequestView:
    """What a speculator may know about a request.

    The owner of the view (the speculator pool) appends committed tokens to ``context`` before it calls
    ``observe``; speculators only read it.
    """

    request_id: int  # number of its sequence
    request: Request
    vocab_size: int
    context: TokenBuffer  # prompt + output so far; the last token is the root of the next tree

    @classmethod
    def of(cls, request_id: int, request: Request, vocab_size: int) -> RequestView:
        """The view of a request that begins: its context is the prompt and what was emitted of it already."""
        context = TokenBuffer([*request.prompt, *request.emitted], len(request.prompt) + request.params.max_tokens)
        return cls(request_id, request, vocab_size, context)

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)


class Branch(msgspec.Struct, frozen=True):
    """A drafted continuation of the context: a chain, or a tree when ``parents`` is given.

    ``tokens`` ``[n]``; ``parents`` ``[n]`` indices into ``tokens`` (-1 is the root), parents first. A probe is never
    accepted: the target's top ids behind its last node are read back. ``q`` ``[n, vocab]`` is the distribution each
    token was *independently sampled* from; leave it out for anything chosen by rank, score or rule. ``scores`` ``[n]``
    are the source's own estimates of the probability that the target writes a node's token once its parent was
    accepted: combinations spend their nodes by them (``speculators.mixing.combined``). ``proposers`` ``[n]`` name the
    sources of each node, its owner first, in a branch that several made together; else all nodes are ``source``'s.
    """

    tokens: Sequence[int]
    source: str
    parents: Sequence[int] | None = None
    probe: bool = False
    q: FloatArray | None = None
    scores: Sequence[float] | None = None
    proposers: Sequence[tuple[str, ...]] | None = None

    @property
    def above(self) -> Sequence[int]:
        """``parents``, those of a chain where there are none."""
        return range(ROOT, len(self.tokens) - 1) if self.parents is None else self.parents


class Decision(NamedTuple):
    """What a method that weighs gain against cost decided about one step of a request; of few different values."""

    tier: str  # how much is done for a draft
    reason: str
    reads_back: bool = True  # whether the ids behind nodes that its needs ask for are read back in that step


class Pause(NamedTuple):
    """Steps of a request in which its speculator is neither asked nor told."""

    n_steps: int = 0
    decision: Decision | None = None  # about each of them


NO_PAUSE = Pause()


class Draft(list[Branch]):
    """Branches of one request, what was decided about its step by a method that decides, and how long it rests then.

    The outcome of the last step of a rest has the tokens of all. ``wants_next`` says whether the target's drafter, for
    a request that needs it, drafts behind that step, or behind the one of this draft if there is no rest.
    """

    __slots__ = ("decision", "drafts_next", "pause")

    def __init__(
        self,
        branches: Iterable[Branch] = (),
        decision: Decision | None = None,
        pause: Pause = NO_PAUSE,
        drafts_next: bool = True,
    ) -> None:
        super().__init__(branches)
        self.decision = decision
        self.pause = pause
        self.drafts_next = drafts_next


@dataclass(slots=True, frozen=True)
class Needs:
    """What a speculator wants read back from the target besides tokens; nothing costs nothing."""

    probe_top_k: int = 0  # ids at the last node of every probe branch
    node_top_k: int = 0  # ids at the root and every node, rejected ones too
    prompt_top_k: int = 0  # ids at every prompt position
    hidden_layer: int | None = None  # hidden state after this layer, for every committed position
    heads: tuple[tuple[int, int], ...] = ()  # (layer, head): attention row of the last forwarded position
    top_logprobs: bool = False  # with every list of top ids, their log-probabilities
    hidden_dims: int = 0  # project the hidden state to so many dimensions before it travels; 0: as it is
    drafter: bool = False  # drafts of the target's trained drafter
    drafts_first: bool = True  # one of these behind the prompt

    def merge(self, other: Needs) -> Needs:
        """The smallest needs that cover both.

        Raises:
            ValueError: two different hidden layers are wanted, or one in different projections.
        """
        layers = {layer for layer in (self.hidden_layer, other.hidden_layer) if layer is not None}
        if len(layers) > 1:
            raise ValueError(f"two speculators want hidden states of different layers: {sorted(layers)}")
        dims = {needs.hidden_dims for needs in (self, other) if needs.hidden_layer is not None}
        if len(dims) > 1:
            raise ValueError(f"two speculators want hidden states of different dimensions: {sorted(dims)}")
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
    """Inner states of the target for the positions that a step committed (PLD+)."""

    hidden: FloatArray | None = None  # [n_new_positions, d], appended position by position from 0 on
    attention: FloatArray | None = None  # [n_heads, n_positions]: last forwarded position over all cached ones


class StepTime(NamedTuple):
    """How long a step took in which all sequences decoded, and what was in it."""

    seconds: float  # in all stages together, without the drafter
    n_sequences: int
    n_rows: int  # roots and nodes
    context: float  # tokens before a root, on average
    n_read: int = 0  # rows whose best next ids were read back
    draft_seconds: float = 0.0  # of the target's drafter


class Outcome(msgspec.Struct, frozen=True):
    """What the target made of one step's tree (or of a prompt chunk, then ``tree`` is empty).

    ``tokens`` were committed: the accepted path and the bonus token; empty for a prompt chunk that is not the last.
    Those of steps in which the speculator rested (``Draft.rest``) come first, one each.
    """

    tokens: Sequence[int]
    tree: TokenTree
    accepted: Sequence[int] = ()  # nodes of the accepted path, root first
    top_ids: Mapping[int, Sequence[int]] = NO_TOP_IDS  # node (-1 root) -> ids, best first; a TopIds from the engine
    prompt_top_ids: IntArray | None = None  # [chunk, k]
    prompt_top_logprobs: FloatArray | None = None  # [chunk, k]
    prompt_start: int = 0  # position of the chunk's first token
    n_read: int = 0  # tokens of the chunk without what the cache held of it
    artefacts: Artefacts | None = None
    step: StepTime | None = None  # one object for all outcomes of a step; None where prompts were read
    draft: Branch | None = None  # what the target's drafter drafted behind the last token

    def top_ids_after(self, tokens: Sequence[int]) -> Sequence[int]:
        """The target's best next ids behind the node reached by ``tokens``; empty if it was not scored."""
        node = self.tree.find(tokens)
        return () if node is None else self.top_ids.get(node, ())


@runtime_checkable
class Speculator(Protocol):
    """A drafting method. One instance serves many requests; per-request state is keyed by ``request_id``.

    A class that inherits from this one writes ``propose``, and of the others what it needs.
    """

    name: str
    needs: Needs

    def begin(self, view: RequestView) -> None:
        """Admit a request; its context is the prompt."""
        return

    @abstractmethod
    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return branches for the next step, best first, of at most ``budget`` nodes together (probes count)."""

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Learn from the target's answer; ``view.context`` already holds the committed tokens."""
        return

    def end(self, view: RequestView) -> None:
        """Drop all state of the request. Called once, also on cancel and error."""
        return


@runtime_checkable
class BatchSpeculator(Speculator, Protocol):
    """A method that drafts for many requests in one go (a drafter with weights)."""

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """``propose`` for several requests at once, in order."""


class DraftPool(Protocol):
    """Speculators of all live requests behind one call per step; in this process or in an actor."""

    def needs(self, method: str, request: Request | None = None) -> Needs:
        """What the target must read back for a method, or for a request of it; raises UnknownMethodError."""

    def begin(self, request_id: int, request: Request, vocab_size: int) -> None:
        """A request was admitted; ``request.method`` says which speculator drafts for it."""

    def advance(self, outcomes: Sequence[tuple[int, Outcome]], budgets: Mapping[int, int]) -> dict[int, list[Branch]]:
        """Learn from outcomes, then draft for every request in ``budgets``.

        A ``Draft`` may say that what the target would say behind the nodes of the next step is not worth reading back.
        Nor is it for a request without an entry in the answer, which no speculator knows.
        """

    def end(self, request_id: int) -> None:
        """Drop a request; harmless when it is not live."""

    @property
    def n_live(self) -> int:
        """Requests that have begun and not ended."""
