"""Drafts the tokens that a request's grammar forces, such as the keys, quotes and brackets of a JSON schema.

The target still samples every token under the mask of the grammar. It may write the same text with other tokens than
the tokenizer would. Requests without a grammar cost one dictionary look-up.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from engine.grammar.compiler import Grammars
from engine.grammar.grammar import Grammar
from engine.grammar.state import GrammarState
from engine.model.resolve import resolve
from engine.protocol import Branch, Needs, RequestView
from engine.request import Request
from speculators.method import Method, MethodContext
from speculators.per_request import PerRequest
from speculators.settings import Settings

CLAIM = 0.9  # probability that the target writes a forced token as the tokenizer would; callers calibrate it


@dataclass(frozen=True, slots=True)
class GrammarConfig:
    """The model whose tokenizer is used; its files are resolved in the process that drafts."""

    model: str  # directory or hub id
    revision: str | None
    eos_ids: tuple[int, ...]
    vocab_size: int

    def grammars(self) -> Grammars:
        """Return a compiler of grammars, which reads the tokenizer when it compiles the first one."""
        return Grammars(self._tokenizer, self.eos_ids, self.vocab_size)

    def _tokenizer(self) -> str:
        folder = resolve(self.model, self.revision, weights=())
        return (folder / "tokenizer.json").read_text(encoding="utf-8")


@dataclass(slots=True)
class _ParsedText:
    """How far one request's text has been parsed."""

    grammar: Grammar
    compiling: Future[Any]
    state: GrammarState | None = None
    n_parsed: int = 0  # tokens of the context that ``state`` has read


class GrammarDrafts(PerRequest[_ParsedText | None]):
    """Drafts forced tokens; ``grammars`` compiles in its own thread, and until then nothing is drafted."""

    name = "grammar"
    needs = Needs()
    catches_up = True  # a draft parses the part of the context that was not parsed yet

    def __init__(self, grammars: Grammars) -> None:
        super().__init__()
        self._grammars = grammars

    @staticmethod
    def serves(request: Request) -> bool:
        """Return whether the request has a grammar."""
        return request.params.grammar is not None

    def new_state(self, view: RequestView) -> _ParsedText | None:
        grammar = view.request.params.grammar
        return None if grammar is None else _ParsedText(grammar, self._grammars.prepare(grammar))

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return the forced tokens after the context as a chain, if there are any."""
        text = self.states.get(view.request_id)
        if text is None or budget <= 0 or not text.compiling.done():
            return []
        if text.state is None:
            text.state, text.n_parsed = self._grammars.state(text.grammar), view.n_prompt
        for token in view.context.view[text.n_parsed :].tolist():
            text.state.advance(token)
        text.n_parsed = len(view.context)
        tokens = text.state.forced()[:budget]
        return [Branch(tokens, self.name, scores=[CLAIM] * len(tokens))] if tokens else []


def _grammar_drafts(settings: Settings, context: MethodContext) -> GrammarDrafts:
    assert context.options.grammar is not None
    return GrammarDrafts(context.options.grammar.grammars())


GRAMMAR = Method(
    name="grammar",
    factory=_grammar_drafts,
    description="tokens that a request's grammar leaves no choice about",
    needs=("grammar",),
)
