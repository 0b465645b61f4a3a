"""What a running request tells the world: one event per target step, and its figures on the last one.

The engine (or the router in front of it) fills these; the edge turns them into text. They are msgspec structs, so that
they cross processes cheaply. Nothing here knows text, HTTP or how tokens came about.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

STOP, LENGTH, ABORT = "stop", "length", "abort"  # every finish_reason an event may carry
NOT_FINITE = "the model's logits are NaN or infinite, as after an overflow of float16; another dtype may help"


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability (natural log) of one emitted token under the target, and the best alternatives there."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first, as many as the request asked for


class SourceCounts(NamedTuple):
    """What one source did, in nodes. A node belongs to the source that proposed it first (in priority order, or with
    the highest estimate); the others' proposals of it are counted too, so that one sees which source earns its place.
    """

    drafted: int  # nodes that are its own; probes not counted
    accepted: int  # of these
    proposed: int = 0  # nodes it proposed, its own or not
    proposed_accepted: int = 0  # of these
    sole_accepted: int = 0  # accepted nodes that no other source proposed

    def plus(self, other: SourceCounts) -> SourceCounts:
        """Both together."""
        return SourceCounts(*map(operator.add, self, other))

    @property
    def named(self) -> dict[str, int]:
        """Count by name, as JSON shows it."""
        return self._asdict()


class RequestStats(msgspec.Struct, frozen=True, kw_only=True):
    """What one choice cost. ``len(tokens) = 1 + sum(step_tokens)`` and ``target_forwards = len(step_tokens)``."""

    prompt_tokens: int
    target_forwards: int  # decode steps; the prefill, which yields the first token, is not one
    drafted_tokens: int  # nodes scored, probes not counted
    accepted_tokens: int  # drafted nodes on accepted paths, cut to what was emitted
    step_tokens: list[int] = []  # tokens committed by each decode step, bonus included; at least 1 each
    accepted_steps: list[int] = []  # by j: decode steps that accepted exactly j drafted nodes; as long as needed
    max_nodes_used: int = 0  # largest tree of any step, nodes
    by_source: dict[str, SourceCounts] = {}
    seconds: float = 0.0  # from submission to the last token: the sum of the next three
    queue_seconds: float = 0.0  # from submission until it first owned KV blocks
    prefill_seconds: float = 0.0  # from there to the first token
    decode_seconds: float = 0.0  # from the first token to the last, with all that a preemption cost
    preemptions: int = 0  # how often the sequence lost its KV blocks and was prefilled again
    cached_tokens: int = 0  # of the prompt, with rows in the cache already: whole blocks, for a drafter less one
    decisions: dict[str, int] = {}  # drafts by what ``auto`` decided about them, as ``tier:reason``


def histogram(values: Iterable[int]) -> list[int]:
    """How often each number occurs: by number, up to the largest."""
    counts = Counter(values)
    return [counts[number] for number in range(max(counts, default=-1) + 1)]


class StepTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The tree of one step and what became of it, for a request that wants to see it. Lists are by node."""

    tokens: list[int]
    parents: list[int]  # -1: the root
    depths: list[int]  # 1: below the root
    sources: list[int]  # of each node, the first of ``names`` that proposed it
    proposers: list[int]  # all that did, as a bit set over ``names``
    probe: list[bool]
    scores: list[float | None]  # probabilities that the target writes a node once its parent was accepted, estimated
    names: tuple[str, ...]
    accepted: list[int]  # nodes, in the order of their tokens; the bonus token follows

    def source(self, i: int) -> str | None:
        """Who drafted the ``i``-th token of the step; None: the target drew it itself."""
        return self.names[self.sources[self.accepted[i]]] if i < len(self.accepted) else None

    def path(self) -> StepTrace:
        """The same with its accepted nodes alone."""
        nodes = self.accepted
        return StepTrace(
            tokens=_of(nodes, self.tokens),
            parents=[*range(-1, len(nodes) - 1)],
            depths=_of(nodes, self.depths),
            sources=_of(nodes, self.sources),
            proposers=_of(nodes, self.proposers),
            probe=_of(nodes, self.probe),
            scores=_of(nodes, self.scores),
            names=self.names,
            accepted=[*range(len(nodes))],
        )


def _of(nodes: list[int], values: list[T]) -> list[T]:
    return [values[node] for node in nodes]


class StepEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that one target step committed for one choice. The first event of a choice comes from the prefill.

    A stop id that ended the text is the last token of the last event, with ``finish_reason`` ``stop`` and
    ``stop_reason`` set to it. Exactly one event, the last, has a ``finish_reason``; only that one carries ``stats``.
    """

    token_ids: list[int]
    finish_reason: str | None = None  # STOP, LENGTH, ABORT
    stop_reason: int | None = None  # the stop id, when one ended the text
    logprobs: list[TokenLogprob] | None = None  # one per token, when the request asked for them
    prompt_logprobs: list[TokenLogprob] | None = None  # first event: of the prompt's tokens but the first, if wanted
    drafts: dict[str, SourceCounts] | None = None  # this step, by source
    stats: RequestStats | None = None
    trace: StepTrace | None = None  # of a step that is no prefill, if the request asks for it
    error: str = ""  # why the engine aborted the request: what its grammar asks for, or NOT_FINITE; "": neither

    @property
    def has_broken_logits(self) -> bool:
        """Whether the model's logits were NaN or infinite, which is not the request's fault."""
        return self.error == NOT_FINITE
