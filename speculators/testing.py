"""Speculators that know the future, to bound tests of loops and schedulers; never registered as a product's methods.

``create("always-right", extra={"always-right": lambda options: AlwaysRight(answers)})`` is the only way to get one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.protocol import Branch, Needs, Outcome, RequestView


class AlwaysRight:
    """Drafts the next ``depth`` tokens of the known answer: every one is accepted.

    Args:
        answers: prompt tokens -> the tokens that plain decoding gives behind them.
        depth: tokens per draft.
    """

    name = "always-right"
    needs = Needs()

    def __init__(self, answers: Mapping[tuple[int, ...], Sequence[int]], depth: int = 4) -> None:
        self._answers = answers
        self._depth = depth

    def begin(self, view: RequestView) -> None:
        """Nothing to remember."""

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """One chain of at most ``depth`` tokens; nothing for an unknown prompt or past the end."""
        future = self._future(view)[: min(self._depth, budget)]
        return [Branch(future, self.name)] if future else []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Nothing to learn."""

    def end(self, view: RequestView) -> None:
        """Nothing to drop."""

    def _future(self, view: RequestView) -> list[int]:
        context = view.context.view
        answer = self._answers.get(tuple(context[: view.n_prompt].tolist()), ())
        return list(answer[len(context) - view.n_prompt :])


class AlwaysWrong(AlwaysRight):
    """Drafts chains whose first token is wrong, so that none is accepted; the true tokens follow it."""

    name = "always-wrong"

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """One chain of at most ``depth`` tokens that starts with the token after the true one."""
        future = self._future(view)[: min(self._depth, budget)]
        if not future:
            return []
        return [Branch([(future[0] + 1) % view.vocab_size, *future[1:]], self.name)]
