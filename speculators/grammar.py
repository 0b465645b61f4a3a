"""Drafts what a request's grammar leaves no choice about: keys, quotes and brackets that its schema has in common.

Drafted, never forced: the target still draws every token, under the mask of its grammar, and may cut the same text into
other tokens than the tokenizer would. Requests without a grammar cost a look into a dictionary.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from engine.grammar.compiler import Grammars
from engine.grammar.grammar import Grammar
from engine.grammar.state import GrammarState
from engine.model.resolve import resolve
from engine.protocol import Branch, Needs, Outcome, RequestView
from speculators.method import Method

CLAIM = 0.9  # that the target writes a forced token as the tokenizer would; those who use claims calibrate them


@dataclass(frozen=True, slots=True)
class GrammarConfig:
    """Of which model the tokens are; files are found or fetched where the method runs."""

    model: str  # directory or hub id
    revision: str | None
    eos_ids: tuple[int, ...]
    vocab_size: int

    def grammars(self) -> Grammars:
        """Compiles grammars for the model's tokenizer, which is read with the first of them."""
        return Grammars(self._tokenizer, self.eos_ids, self.vocab_size)

    def _tokenizer(self) -> str:
        folder = resolve(self.model, self.revision, weights=())
        return (folder / "tokenizer.json").read_text(encoding="utf-8")


@dataclass(slots=True)
class _Known:
    """One request's text in its grammar."""

    grammar: Grammar
    compiling: Future[Any]
    state: GrammarState | None = None
    n_parsed: int = field(default=0)  # tokens of the context that ``state`` is behind


class GrammarDrafts:
    """Drafts forced tokens.

    Args:
        grammars: compiles in its own thread; until then nothing is drafted.
    """

    name = "grammar"
    needs = Needs()
    catches_up = True  # a draft parses all of the context that no earlier one has
    drafts_beside = True  # in auto: whichever other sources draft, and no reason to ask fewer of them

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._known: dict[int, _Known] = {}

    def begin(self, view: RequestView) -> None:
        """Compile the request's grammar, if it has one."""
        grammar = view.request.params.grammar
        if grammar is not None:
            self._known[view.request_id] = _Known(grammar, self._grammars.prepare(grammar))

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """The forced tokens behind the context as a chain; none where the grammar leaves a choice."""
        known = self._known.get(view.request_id)
        if known is None or budget <= 0 or not known.compiling.done():
            return []
        if known.state is None:
            known.state, known.n_parsed = self._grammars.state(known.grammar), view.n_prompt
        for token in view.context.view[known.n_parsed :].tolist():
            known.state.advance(token)
        known.n_parsed = len(view.context)
        tokens = known.state.forced()[:budget]
        return [Branch(tokens, self.name, scores=[CLAIM] * len(tokens))] if tokens else []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Nothing to learn: the owner of the view has already appended the tokens."""

    def end(self, view: RequestView) -> None:
        """Drop the state."""
        self._known.pop(view.request_id, None)


GRAMMAR = Method(
    name="grammar",
    factory=lambda settings, context: GrammarDrafts(context.options.grammar.grammars()),
    description="tokens that a request's grammar leaves no choice about",
    needs=("grammar",),
)
