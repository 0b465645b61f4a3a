"""A sequence: one request on its way through the scheduler."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from msgspec.structs import replace

from engine.events import TokenLogprob
from engine.kv.prompt_top_ids import PromptTopIds
from engine.protocol import NO_REST, Needs, Pause
from engine.request import Request
from engine.scheduling.stats import StatsCounter
from engine.tree import EMPTY_TREE, TokenTree


class SequenceState(enum.Enum):
    """Where a sequence stands between steps."""

    WAITING = "waiting"  # in the queue, owns no blocks
    PREFILLING = "prefilling"  # part of its text is not in the cache yet
    DRAFTING = "drafting"  # waits for its speculator's draft
    READY = "ready"  # its tree awaits a step
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens, state and statistics of one request; only the scheduler changes them."""

    seq: int
    request: Request
    tokens: list[int]  # prompt + output, which need not be empty at the start
    stats: StatsCounter
    max_nodes: int  # of a step's tree: what the request asks for, within the scheduler's limits
    needs: Needs = field(default_factory=Needs)
    state: SequenceState = SequenceState.WAITING
    n_cached: int = 0  # committed tokens in the cache, as far as the target has answered
    n_sent: int = 0  # tokens that chunks have been sent of, while it is prefilled
    keep: list[int] = field(default_factory=list)  # rows of the last tree that were accepted
    tree: TokenTree = EMPTY_TREE
    reads_back: bool = True  # what the target says behind the nodes of ``tree``
    wants_draft: bool = True  # of the target's drafter behind its next step, or the last one of its rest
    in_flight: int = 0  # unanswered steps that it is in: chunks of its text, or one tree
    cancelled: bool = False
    known: bool = False  # the target holds state of this sequence
    last_step: int = -1  # the last step that its tree was in: the smallest goes first
    passed_over: int = -1  # the last step that had no room for it, but for a sequence with the same ``last_step``
    n_observed: int = 0  # positions whose outcome its speculator has observed
    n_told: int = field(init=False)  # tokens that its speculator knows of
    rest: Pause = NO_REST  # what is left of it
    prompt_top_ids: PromptTopIds = field(default_factory=PromptTopIds)  # as far as its text is in the cache
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # of its second token and those behind, so far
    n_prompt: int = field(init=False)  # tokens of the prompt
    n_most: int = field(init=False)  # tokens of prompt and output when it ends for its length

    def __post_init__(self) -> None:
        self.n_prompt = len(self.request.prompt)
        self.n_told = len(self.tokens)
        self.n_most = self.n_prompt + self.request.params.max_tokens

    @classmethod
    def of(cls, seq: int, request: Request, needs: Needs | None = None) -> Sequence:
        """The sequence of a request: its text begins with the prompt and what was emitted already.

        Args:
            seq: its number, unique among the sequences of one scheduler.
            request: with the server's defaults filled in.
            needs: what its speculator wants read back; None: nothing. A request that may have no nodes never drafts,
                and nothing is read back for it.
        """
        assert request.max_nodes is not None, "the server's defaults have not been filled in"
        tokens = [*request.prompt, *request.emitted]
        wanted = needs if needs is not None and request.max_nodes else Needs()
        stats = StatsCounter(len(request.prompt))
        return cls(seq, request, tokens, stats, request.max_nodes, wanted, wants_draft=wanted.drafts_first)

    @property
    def request_so_far(self) -> Request:
        """The request with all output until now as ``emitted``: what a speculator has to know that begins now."""
        output = self.tokens[self.n_prompt :]
        return self.request if output == self.request.emitted else replace(self.request, emitted=output)

    @property
    def n_output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.n_prompt

    @property
    def n_prefill(self) -> int:
        """Tokens a prefill must bring into the cache.

        A fresh sequence draws its first token behind the whole prompt. A sequence that was preempted, or began with
        emitted tokens, already knows its last token, which becomes the root of its next tree.
        """
        return self.n_prompt if self.n_output == 0 else len(self.tokens) - 1

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether the log-probabilities of its prompt are wanted and have not been told."""
        return self.request.params.prompt_logprobs is not None and self.n_output == 0

    @property
    def n_stable(self) -> int:
        """Tokens whose rows in the cache are confirmed and stay where they are: up to the last tree's root."""
        return self.n_cached - len(self.keep)

    @property
    def is_reading(self) -> bool:
        """Whether some of its text is still to be sent."""
        return self.state is SequenceState.PREFILLING and self.n_sent < self.n_prefill and not self.cancelled

    @property
    def max_new(self) -> int:
        """Tokens it may still emit."""
        return self.n_most - len(self.tokens)

    @property
    def draft_nodes(self) -> int:
        """Nodes that the target's drafter may draft behind its next step."""
        wants = self.needs.drafter and self.wants_draft and not self.rest.n_steps
        return self.max_nodes if wants else 0

    @property
    def budget(self) -> int:
        """Nodes that its next tree may have; 0 when a single token is left to emit."""
        return self.max_nodes if self.n_most - len(self.tokens) > 1 else 0
