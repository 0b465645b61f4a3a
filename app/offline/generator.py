"""Offline generation: answers questions on an engine in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerFast

from app.inputs.prompts import Conversation, Question, encode_chat, encode_plain, encode_raw
from engine.errors import StepFailedError
from engine.events import STOP, RequestStats, StepEvent
from engine.loop import Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.text import Detokenizer


@dataclass(frozen=True, slots=True)
class GeneratedAnswer:
    """One answered turn."""

    index: int  # of the question
    turn: int
    text: str
    token_ids: list[int]  # including a final EOS
    finish_reason: str
    stats: RequestStats
    parts: list[tuple[str, str | None]]  # text of each token and its source; empty unless traced

    def as_json(self) -> dict[str, Any]:
        """Return the line that ``spectra generate --json`` prints."""
        stats = self.stats
        return {
            "index": self.index,
            "turn": self.turn,
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "prompt_tokens": stats.prompt_tokens,
            "target_forwards": stats.target_forwards,
            "drafted_tokens": stats.drafted_tokens,
            "accepted_tokens": stats.accepted_tokens,
            "tokens_per_forward": round(tokens_per_forward([stats]), 4),
            "seconds": round(stats.seconds, 6),
            "step_tokens": stats.step_tokens,
            "max_nodes_used": stats.max_nodes_used,
            "by_source": {name: counts.named for name, counts in stats.by_source.items()},
            **({"decisions": stats.decisions} if stats.decisions else {}),
        }


def tokens_per_forward(stats: Sequence[RequestStats]) -> float:
    """Return the committed tokens per decode forward, without the prefill and its token; 0 without a forward."""
    forwards = sum(one.target_forwards for one in stats)
    return sum(sum(one.step_tokens) for one in stats) / forwards if forwards else 0.0


@dataclass(slots=True)
class _Turn:
    """A turn in progress."""

    index: int
    conversation: Conversation
    token_ids: list[int] = field(default_factory=list)
    sources: list[str | None] = field(default_factory=list)  # of the tokens, if steps are traced


@dataclass(frozen=True, slots=True)
class Generator:
    """Answers questions on an engine, several at a time."""

    engine: Engine
    tokenizer: PreTrainedTokenizerFast  # of the engine's target
    params: SamplingParams  # for every turn
    method: str  # of speculation
    max_nodes: int  # drafted per step
    raw: bool = False  # first turns only, without the chat template
    trace: bool = False  # answers contain the source of each token

    def answers(self, questions: Sequence[Question], batch_size: int) -> Iterator[GeneratedAnswer]:
        """Yield the answer of every turn when it is complete; turns of one question in order.

        Raises StepFailedError if the model's logits are NaN or infinite.
        """
        todo = [_Turn(i, Conversation(q)) for i, q in enumerate(questions)][::-1]
        running: dict[int, _Turn] = {}
        while todo or running:
            while todo and len(running) < batch_size:
                turn = todo.pop()
                running[self._submit(turn.conversation)] = turn
            for seq, event in self.engine.step():
                if event.error:
                    raise StepFailedError(event.error)
                turn = running[seq]
                turn.token_ids += event.token_ids
                if self.trace:
                    trace, n = event.trace, len(event.token_ids)
                    turn.sources += [None if trace is None else trace.source(i) for i in range(n)]
                if event.finish_reason is not None:
                    del running[seq]
                    yield self._finish(turn, event, todo)

    def _submit(self, conversation: Conversation) -> int:
        if self.raw:
            prompt = encode_raw(self.tokenizer, conversation.question.text)
        else:
            prompt = encode_chat(self.tokenizer, conversation.ask())
        predicted = encode_plain(self.tokenizer, conversation.question.prediction)
        request = Request(prompt, self.params, self.method, self.max_nodes, prediction=predicted, trace=self.trace)
        return self.engine.submit(request)

    def _finish(self, turn: _Turn, event: StepEvent, todo: list[_Turn]) -> GeneratedAnswer:
        assert event.finish_reason is not None
        assert event.stats is not None
        shown = turn.token_ids[:-1] if event.finish_reason == STOP else turn.token_ids
        text = self.tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        answer = GeneratedAnswer(
            turn.index,
            turn.conversation.turn,
            str(text),
            turn.token_ids,
            event.finish_reason,
            event.stats,
            self._parts(shown, turn.sources),
        )
        turn.conversation.answer(answer.text)
        if not self.raw and not turn.conversation.is_over:
            todo.append(_Turn(turn.index, turn.conversation))
        return answer

    def _parts(self, shown: Sequence[int], sources: Sequence[str | None]) -> list[tuple[str, str | None]]:
        """Return text and source of each token; a character of several tokens belongs to the last."""
        if not self.trace:
            return []
        detokenizer = Detokenizer(self.tokenizer)
        parts = [(detokenizer.push((token,)), source) for token, source in zip(shown, sources, strict=False)]
        return [*parts, (detokenizer.flush(), None)]
