"""A sequence: one request on its way through the scheduler."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from msgspec.structs import replace

from engine.events import TokenLogprob
from engine.kv.prompt_top_ids import PromptTopIds
from engine.protocol import Decision, Needs
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
    tokens: list[int]  # prompt + output; a resumed sequence begins with output
    stats: StatsCounter
    max_nodes: int  # of the next tree: the request's, or what a step has room for (``BatchingPolicy.limit_tree``)
    needs: Needs = field(default_factory=Needs)
    state: SequenceState = SequenceState.WAITING
    n_cached: int = 0  # committed tokens in the cache, as far as the target has answered
    n_sent: int = 0  # tokens sent in chunks, while it is prefilled
    keep: list[int] = field(default_factory=list)  # rows of the last tree that were accepted
    tree: TokenTree = EMPTY_TREE
    reads_back: bool = True  # whether top ids after the nodes of ``tree`` are read back
    decision: Decision | None = None  # about the draft of ``tree``; about every step of a rest
    drafts_next: bool = True  # whether the target's drafter drafts after the next step, unless it rests
    in_flight: int = 0  # unanswered steps that it is in: chunks of its text, or one tree
    cancelled: bool = False
    is_on_target: bool = False  # whether the target holds state of this sequence
    last_step: int = -1  # the last step with its tree: the smallest goes first
    last_skipped: int = -1  # the last step without room for it, but with a sequence of the same ``last_step``
    n_observed: int = 0  # positions whose outcome its speculator has observed
    rests: bool = False  # whether its speculator is neither asked nor reported to before the next step is sent
    prompt_top_ids: PromptTopIds = field(default_factory=PromptTopIds)  # of the text in the cache
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # so far, from the second token of the prompt
    n_prompt: int = field(init=False)  # tokens of the prompt
    max_length: int = field(init=False)  # tokens of prompt and output

    def __post_init__(self) -> None:
        self.n_prompt = len(self.request.prompt)
        self.max_length = self.n_prompt + self.request.params.max_tokens

    @classmethod
    def of(cls, seq: int, request: Request, needs: Needs | None = None) -> Sequence:
        """Return the sequence of a request; its text begins with the prompt and the output emitted before.

        Args:
            seq: its number, unique among the sequences of one scheduler.
            request: with the server's default method filled in.
            needs: of its speculator; None: nothing is read back, as for a request without nodes, which never drafts.
        """
        tokens = [*request.prompt, *request.emitted]
        needs = needs if needs is not None and request.max_nodes else Needs()
        stats = StatsCounter(len(request.prompt))
        return cls(seq, request, tokens, stats, request.max_nodes, needs, drafts_next=needs.drafts_first)

    @property
    def request_so_far(self) -> Request:
        """The request with all output until now as ``emitted``, for a speculator that begins now."""
        output = self.tokens[self.n_prompt :]
        return self.request if output == self.request.emitted else replace(self.request, emitted=output)

    @property
    def n_output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.n_prompt

    @property
    def n_prefill(self) -> int:
        """Tokens that a prefill brings into the cache.

        A new sequence draws its first token after the whole prompt. A preempted or resumed sequence has its last token
        already, which becomes the root of its next tree.
        """
        return self.n_prompt if self.n_output == 0 else len(self.tokens) - 1

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether the request asks for log-probabilities of its prompt, and none were emitted."""
        return self.request.params.prompt_logprobs is not None and self.n_output == 0

    @property
    def n_stable(self) -> int:
        """Tokens whose rows in the cache are confirmed and do not move: up to the last tree's root."""
        return self.n_cached - len(self.keep)

    @property
    def is_reading(self) -> bool:
        """Whether chunks of its text are still to be sent."""
        return self.state is SequenceState.PREFILLING and self.n_sent < self.n_prefill and not self.cancelled

    @property
    def max_new(self) -> int:
        """Tokens it may still emit."""
        return self.max_length - len(self.tokens)

    @property
    def draft_nodes(self) -> int:
        """Nodes that the target's drafter may draft after its next step."""
        is_drafted = self.needs.drafter and self.drafts_next and not self.rests
        return self.max_nodes if is_drafted else 0

    @property
    def budget(self) -> int:
        """Nodes that its speculator may draft; 0 when a single token is left to emit."""
        return self.max_nodes if self.max_length - len(self.tokens) > 1 else 0
