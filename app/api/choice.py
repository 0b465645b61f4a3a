"""One choice of a response: from the step events of its request to text and statistics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from app.api.tools.answer import AnswerReader
from app.api.tools.parts import AnswerForm, TextPart
from deployments.submission.messages import ModelCard
from engine.events import LENGTH, STOP, RequestStats, SourceCounts, StepEvent, StepTrace, TokenLogprob, histogram
from engine.request import Request
from engine.scheduling.drafting import AUTOREGRESSIVE
from engine.text import StopMatcher

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MOST_HELD = 1 << 14  # nodes of traced steps that wait for the end of a whole answer


class ChoiceDelta(msgspec.Struct, frozen=True, gc=False):
    """The part of a choice that one step adds."""

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None  # stop id or stop string
    logprobs: list[TokenLogprob] | None = None
    offsets: list[int] | None = None  # of each token's text in the choice's text, in characters

    @staticmethod
    def join(pieces: Sequence[ChoiceDelta]) -> ChoiceDelta:
        last = pieces[-1]
        return ChoiceDelta(
            "".join(p.text for p in pieces),
            [token for p in pieces for token in p.token_ids],
            last.finish_reason,
            last.stop_reason,
            None if last.logprobs is None else [entry for p in pieces for entry in p.logprobs or ()],
            None if last.offsets is None else [offset for p in pieces for offset in p.offsets or ()],
        )


class TracedStep(msgspec.Struct, frozen=True, gc=False):
    """A step of a request with ``speculative.trace``."""

    number: int  # 0: the prefill
    token_ids: list[int]  # emitted, without those that a stop string cut
    draft: StepTrace | None  # None: the prefill; beyond ``MOST_HELD`` nodes it has only the accepted ones


class CompletionChoice:
    """Assembles the text of one choice.

    Its ``index`` in the response is prompt * n + choice. ``eos_ids`` of the card end the text and are not reported as
    ``stop_reason``.
    """

    def __init__(
        self, index: int, request: Request, tokenizer: PreTrainedTokenizerFast, card: ModelCard, form: AnswerForm
    ) -> None:
        self.index = index
        self.form = form
        self.request = request
        is_plain = (request.method or card.method) == AUTOREGRESSIVE
        self.max_nodes = 0 if is_plain else request.max_nodes  # drafted nodes that a step may have
        self.n_tokens = 0  # generated tokens in the answer, including a final stop id
        self.n_reasoning = 0  # of them, from the one that completes <think> to the one that completes </think>
        self.stats: RequestStats | None = None  # of the last event; None if a stop string ended the text
        self.first_at: float | None = None  # ``time.perf_counter`` at its first tokens
        self.finish_reason: str | None = None  # None: it is not complete
        self._eos_ids = card.eos_ids
        self._detokenizer = form.detokenizer(tokenizer)
        params = request.params
        self._matcher = StopMatcher(params.stop, params.min_tokens + 1) if params.stop else None
        self._by_token = self._matcher is not None or params.logprobs is not None
        self._reasoning = AnswerReader(replace(form, family=None)) if form.has_reasoning else None
        self._n_chars = len(form.echo)  # of the text so far
        self._step_tokens: list[int] = []
        self._step_accepted: list[int] = []  # only where a stop string may end the text
        self._drafts: dict[str, SourceCounts] = {}
        self._unreported: list[TracedStep] = []
        self._n_steps = self._n_held = 0  # traced steps, and nodes of the unreported ones
        self.is_refused = False  # the backend refused it
        self.prompt_logprobs: list[TokenLogprob] | None = None  # of the prompt, from its second token

    def feed(self, event: StepEvent) -> ChoiceDelta:
        """The piece of one step; the choice is complete when the piece has a ``finish_reason``.

        Raises the errors of ``StepEvent.check_aborted``.
        """
        pieces = self._pieces(event, by_token=self._by_token)
        return pieces[0] if len(pieces) == 1 else ChoiceDelta.join(pieces)

    def feed_tokens(self, event: StepEvent) -> list[ChoiceDelta]:
        """The same, a piece per token: those do not depend on which tokens came in one step.

        The step is counted, and traced, as a whole before its first piece is written.
        """
        return self._pieces(event, by_token=True)

    def final_stats(self) -> RequestStats:
        """The engine's statistics, or this choice's own after a stop string."""
        return self.stats or RequestStats(
            prompt_tokens=len(self.request.prompt),
            target_forwards=len(self._step_tokens),
            drafted_tokens=sum(counts.drafted for counts in self._drafts.values()),
            accepted_tokens=sum(counts.accepted for counts in self._drafts.values()),
            step_tokens=self._step_tokens,
            accepted_steps=histogram(self._step_accepted),
            by_source=self._drafts,
        )

    @property
    def n_logprobs(self) -> int:
        """Log-probabilities of its tokens, and of its prompt's where this choice has them."""
        params = self.request.params
        own = 0 if params.logprobs is None else self.n_tokens * (1 + params.logprobs)
        return own + len(self.prompt_logprobs or ()) * (1 + (params.prompt_logprobs or 0))

    def take_trace(self) -> list[TracedStep]:
        """The steps since the last call; none unless the request asks for a trace."""
        taken, self._unreported, self._n_held = self._unreported, [], 0
        return taken

    def _pieces(self, event: StepEvent, *, by_token: bool) -> list[ChoiceDelta]:
        event.check_aborted()
        if event.prompt_logprobs is not None:
            self.prompt_logprobs = event.prompt_logprobs
        if self.form.is_echo_alone:
            event = replace(event, token_ids=[], finish_reason=LENGTH, stop_reason=None)
        pieces = self._by_tokens(event) if by_token else [self._at_once(event)]
        if self.form.echo and not self.n_tokens:
            pieces[0] = replace(pieces[0], text=self.form.echo + pieces[0].text)
        used = [token for piece in pieces for token in piece.token_ids]
        if self.request.trace:
            self._trace(event, used)
        self._count(event, len(used))
        self.finish_reason = pieces[-1].finish_reason
        return pieces

    def _at_once(self, event: StepEvent) -> ChoiceDelta:
        """The common case: all tokens of the step become text together."""
        text = self._push_tokens(self._shown(event))
        text += "" if event.finish_reason is None else self._detokenizer.flush()
        return ChoiceDelta(text, event.token_ids, event.finish_reason, self._visible_reason(event))

    def _by_tokens(self, event: StepEvent) -> list[ChoiceDelta]:
        """Token by token, for stop strings, for the offset of each token's text, and for answers that are resumed."""
        ids, finish = event.token_ids, event.finish_reason
        reason: int | str | None = self._visible_reason(event)
        texts, offsets, rest = list[str](), list[int](), ""
        for token in self._shown(event):
            if self._matcher is not None and self._matcher.matched is not None:
                break  # the tokens that follow do not belong to the answer
            offsets.append(self._n_chars)
            texts.append(self._match(self._push_tokens((token,)), 1))
        if finish is not None:
            offsets += [self._n_chars] * (len(ids) - len(offsets))
            rest = self._match(self._detokenizer.flush(), 0)
            rest += self._matcher.flush() if self._matcher is not None else ""
        if self._matcher is not None and self._matcher.matched is not None:
            finish, reason = STOP, self._matcher.matched
            rest += reason if self.form.includes_stop else ""
            ids = ids[: self._matcher.tokens - self.n_tokens]
        n = max(1, len(ids))
        rest = "".join(texts[n:]) + rest
        texts = [*texts[:n], *[""] * (n - len(texts))]
        logprobs = event.logprobs
        return [
            ChoiceDelta(
                text if i < n - 1 else text + rest,
                ids[i : i + 1],
                finish if i == n - 1 else None,
                reason if i == n - 1 else None,
                None if logprobs is None else logprobs[i : min(i + 1, len(ids))],
                offsets[i : min(i + 1, len(ids))],
            )
            for i, text in enumerate(texts)
        ]

    def _shown(self, event: StepEvent) -> list[int]:
        """Tokens that have text: a stop id has none, unless the request includes it."""
        is_hidden = event.finish_reason == STOP and not self.form.includes_stop
        return event.token_ids[:-1] if is_hidden else event.token_ids

    def _match(self, text: str, n_tokens: int) -> str:
        self._n_chars += len(text)
        return text if self._matcher is None else self._matcher.push(text, n_tokens)

    def _visible_reason(self, event: StepEvent) -> int | None:
        """The stop id if the client asked for it; None for the model's own end of text."""
        return None if event.stop_reason in self._eos_ids else event.stop_reason

    def _trace(self, event: StepEvent, used: list[int]) -> None:
        draft = event.trace
        if draft is not None:
            self._n_held += len(draft.tokens)
            draft = draft if self._n_held <= MOST_HELD else draft.path()
        self._unreported.append(TracedStep(self._n_steps, used, draft))
        self._n_steps += 1

    def _push_tokens(self, ids: Sequence[int]) -> str:
        """Return the text that tokens add; count those of the reasoning, one by one so that steps do not matter."""
        text = ""
        for i, token in enumerate(ids):
            if self._reasoning is None:
                return text + self._detokenizer.push(ids[i:])
            was_inside, new = self._reasoning.is_inside, self._detokenizer.push((token,))
            parts = self._reasoning.push(new)
            self.n_reasoning += was_inside or self._reasoning.is_inside
            if any(isinstance(part, TextPart) for part in parts):
                self._reasoning = None  # no reasoning follows the content
            text += new
        return text

    def _count(self, event: StepEvent, used: int) -> None:
        if self.n_tokens:  # the first event is that of the prefill
            self._step_tokens.append(used)
            drafts = event.drafts or {}  # a step that prefills again after a preemption has none
            if self._matcher is not None:
                self._step_accepted.append(sum(counts.accepted for counts in drafts.values()))
            for name, counts in drafts.items():
                self._drafts[name] = counts.plus(self._drafts[name]) if name in self._drafts else counts
        else:
            self.first_at = self.first_at or time.perf_counter()
        self.n_tokens += used
        self.stats = event.stats


def count_prompt_tokens(choices: Sequence[CompletionChoice]) -> int:
    """Tokens of all prompts; a prompt of several choices counts once."""
    return sum(len(choice.request.prompt) for choice in choices if choice.request.params.choice == 0)
