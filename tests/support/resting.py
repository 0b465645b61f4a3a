"""A speculator that lets requests rest for given numbers of steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engine.protocol import Branch, Decision, Draft, Needs, Outcome, RequestView

RESTING = Decision("off", "rests", reads_back=False)


class Resting:
    """Rests for the given numbers of steps, drafts a guess where one is 0, and keeps the tokens of all outcomes."""

    name = "resting"
    needs = Needs(node_top_k=2, prompt_top_k=2)

    def __init__(self, rests: Sequence[int], drafts_next: bool = True) -> None:
        self.rests, self.drafts_next = rests, drafts_next
        self.asked: dict[int, list[int]] = {}  # lengths of the text
        self.learnt: dict[int, list[int]] = {}  # tokens
        self.left: dict[int, int] = {}  # steps of the rest
        self.seconds: list[float] = []  # of every call of ``settle``

    def begin(self, view: RequestView) -> None:
        self.asked[view.request_id] = []
        self.learnt[view.request_id] = view.context.view[view.n_prompt :].tolist()
        self.left[view.request_id] = 0

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        asked = self.asked[view.request_id]
        n_steps = self.rests[len(asked) % len(self.rests)]
        asked.append(len(view.context))
        self.left[view.request_id] = n_steps
        if n_steps == 0:
            return Draft([Branch([5, 6], self.name)], Decision("full", "pays"), drafts_next=self.drafts_next)
        return Draft((), RESTING, True, self.drafts_next)

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        return [self.propose(view, budget) for view, budget in zip(views, budgets, strict=True)]

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        learnt = self.learnt[view.request_id]
        learnt += outcome.tokens
        assert view.context.view[view.n_prompt :].tolist() == learnt
        assert len(outcome.tree) <= 2

    def settle(self, views: Sequence[RequestView], outcomes: Sequence[Outcome], seconds: float) -> Collection[int]:
        self.seconds.append(seconds)
        ended = []
        for view, outcome in zip(views, outcomes, strict=True):
            assert not len(outcome.tree)
            assert not len(outcome.top_ids)
            self.observe(view, outcome)
            self.left[view.request_id] -= len(outcome.tokens)
            if self.left[view.request_id] <= 0:
                ended.append(view.request_id)
        return ended

    def end(self, view: RequestView) -> None:
        """The tokens stay, for the tests."""
