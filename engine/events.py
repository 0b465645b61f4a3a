"""Events of a running request: one per target step, the last one with the request's statistics.

The engine or the router fills them, the edge turns them into text. They are msgspec structs, which cross processes
cheaply. Nothing here knows text, HTTP or how tokens are chosen.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from engine.errors import RequestError, StepFailedError, TargetLostError

STOP, LENGTH, ABORT = "stop", "length", "abort"  # every finish_reason of an event
NOT_FINITE = "the model's logits are NaN or infinite, as after an overflow of float16; another dtype may help"


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability (natural log) of one emitted token under the target, and the best alternatives there."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first, as many as the request asked for


class SourceCounts(NamedTuple):
    """Nodes of one source. A node belongs to the source that proposed it first (in priority order, or with the highest
    estimate). Proposals by other sources are counted, too, to show which source is worth its cost.
    """

    drafted: int  # own nodes; probes not counted
    accepted: int  # of these
    proposed: int = 0  # proposed nodes, own or not
    proposed_accepted: int = 0  # of these
    sole_accepted: int = 0  # accepted nodes that no other source proposed

    def plus(self, other: SourceCounts) -> SourceCounts:
        """Return the sums of both."""
        return SourceCounts(*map(operator.add, self, other))

    @property
    def named(self) -> dict[str, int]:
        """Counts by name, as in JSON."""
        return self._asdict()


class RequestStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one choice. ``len(tokens) = 1 + sum(step_tokens)`` and ``target_forwards = len(step_tokens)``."""

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
    decode_seconds: float = 0.0  # from the first token to the last, preemptions included
    preemptions: int = 0  # times that the sequence lost its KV blocks and was prefilled again
    cached_tokens: int = 0  # tokens of the prompt that the cache held: whole blocks, for a drafter one less
    decisions: dict[str, int] = {}  # steps by the decision of ``auto``, as ``tier:reason``


def histogram(values: Iterable[int]) -> list[int]:
    """Return how often each number from 0 to the largest occurs."""
    counts = Counter(values)
    return [counts[number] for number in range(max(counts, default=-1) + 1)]


class StepTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The tree of one step and its accepted nodes, for a request with ``trace``. Lists are by node."""

    tokens: list[int]
    parents: list[int]  # -1: the root
    depths: list[int]  # 1: below the root
    sources: list[int]  # index into ``names`` of the first source that proposed the node
    proposers: list[int]  # all sources that proposed it, as a bit set over ``names``
    probe: list[bool]
    scores: list[float | None]  # estimated probability of a node once its parent is accepted
    names: tuple[str, ...]
    accepted: list[int]  # nodes, in the order of their tokens; the bonus token follows

    def source(self, i: int) -> str | None:
        """Return the source of the step's ``i``-th token; None: the target drew it."""
        return self.names[self.sources[self.accepted[i]]] if i < len(self.accepted) else None

    def path(self) -> StepTrace:
        """Return the trace of the accepted nodes alone."""
        nodes = self.accepted
        columns: dict[str, Any] = {
            name: [getattr(self, name)[node] for node in nodes]
            for name in ("tokens", "depths", "sources", "proposers", "probe", "scores")
        }
        chain = [*range(-1, len(nodes) - 1)]
        return msgspec.structs.replace(self, parents=chain, accepted=[*range(len(nodes))], **columns)


class StepEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens that one target step committed for one choice. The first event of a choice comes from the prefill.

    A stop id that ended the text is the last token of the last event, with ``finish_reason`` ``stop`` and
    ``stop_reason`` set to it. Exactly one event, the last, has a ``finish_reason``; only that one carries ``stats``.
    """

    token_ids: list[int]
    finish_reason: str | None = None  # STOP, LENGTH, ABORT
    stop_reason: int | None = None  # the stop id, when one ended the text
    logprobs: list[TokenLogprob] | None = None  # one per token, when the request asked for them
    prompt_logprobs: list[TokenLogprob] | None = None  # first event: from the prompt's second token
    drafts: dict[str, SourceCounts] | None = None  # this step, by source
    stats: RequestStats | None = None
    trace: StepTrace | None = None  # of a decode step, if the request asks for it
    error: str = ""  # why the engine aborted the request: its grammar, or NOT_FINITE; "": it did not

    def check_aborted(self) -> None:
        """Return unless the engine aborted the request.

        Raises:
            StepFailedError: the model's logits are NaN or infinite, which is not the request's fault.
            RequestError: its grammar took too much work, or has no text that continues.
            TargetLostError: the server aborted it; it may be sent again.
        """
        if self.error == NOT_FINITE:
            raise StepFailedError(self.error)
        if self.finish_reason == ABORT and self.error:
            raise RequestError(f"the text cannot continue as its grammar requires: {self.error}")
        if self.finish_reason == ABORT:
            raise TargetLostError("the request was aborted by the server; send it again")
