"""For tests and benchmarks: speculators that know the answer, and a target without a model.

The registry has no name for these speculators: ``create("always-right", extra={"always-right": lambda options:
AlwaysRight(answers)})`` makes one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.top_ids import TopIds
from engine.tree import EMPTY_TREE, ROOT, FloatArray, TokenTree


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


class RightAmongWrong(AlwaysRight):
    """Drafts the true tokens as a path of a tree: every node of it has a wrong sibling, and that a child of its own."""

    name = "right-among-wrong"

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """One tree, at most ``depth`` deep, with three nodes for each true token."""
        tokens: list[int] = []
        parents: list[int] = []
        above = astray = ROOT
        for token in self._future(view)[: min(self._depth, budget // 3)]:
            tokens += [(token + 1) % view.vocab_size, token, (token + 2) % view.vocab_size]
            parents += [above, above, astray]
            astray, above = len(tokens) - 3, len(tokens) - 2
        return [Branch(tokens, self.name, parents)] if tokens else []


class HashTarget:
    """An order-2 language over ``range(vocab_size)``: the next token is a hash of the last two tokens.

    Deterministic, and repetitive enough (few successors per token) that n-gram methods find something.

    Args:
        vocab_size: at least ``top_k``.
        n_successors: how many different tokens may follow a token; fewer repeat more.
        top_k: ids read back per node.
    """

    def __init__(self, vocab_size: int, n_successors: int = 3, top_k: int = 32) -> None:
        assert vocab_size >= top_k
        self.vocab_size = vocab_size
        self._n_successors = n_successors
        self._top_k = top_k

    def next_token(self, context: Sequence[int]) -> int:
        """The argmax behind ``context``."""
        last = context[-1]
        before = context[-2] if len(context) > 1 else 0
        choice = (before * 2654435761 + last * 40503 >> 7) % self._n_successors
        return (last * 7919 + choice * 104729 + 13) % self.vocab_size

    def top_ids(self, context: Sequence[int]) -> list[int]:
        """The ``top_k`` best next ids, best first, all different."""
        best = self.next_token(context)
        return [(best + i) % self.vocab_size for i in range(self._top_k)]

    def generate(self, prompt: Sequence[int], n_tokens: int) -> list[int]:
        """Plain greedy decoding: what every method must reproduce."""
        context = list(prompt)
        for _ in range(n_tokens):
            context.append(self.next_token(context))
        return context[len(prompt) :]

    def read_prompt(self, prompt: Sequence[int], start: int = 0) -> Outcome:
        """The first token, and the ids behind every prompt position from ``start`` on."""
        ids = [self.top_ids(prompt[: end + 1]) for end in range(start, len(prompt))]
        return Outcome(
            [self.next_token(prompt)],
            EMPTY_TREE,
            prompt_top_ids=np.array(ids, np.int32).reshape(-1, self._top_k),
            prompt_top_logprobs=self._logprobs(len(ids)),
            prompt_start=start,
            n_read=len(prompt) - start,
        )

    def score(self, context: Sequence[int], tree: TokenTree) -> Outcome:
        """One step: greedy verification (Algorithm 3), and the ids behind the root and every node."""
        tail = list(context[-2:])
        accepted: list[int] = []
        tokens: list[int] = []
        node = ROOT
        while True:
            best = self.next_token(tail + tokens)
            tokens.append(best)
            node = next((child for child in tree.children[node + 1] if tree.tokens[child] == best), ROOT)
            if node == ROOT:
                break
            accepted.append(node)
        nodes = np.arange(ROOT, len(tree), dtype=np.int32)
        ids = [self.top_ids(tail + [tree.tokens[i] for i in tree.path(node)]) for node in nodes.tolist()]
        return Outcome(tokens, tree, accepted, TopIds(nodes, np.array(ids, np.int32), self._logprobs(len(ids))))

    def _logprobs(self, n: int) -> FloatArray:
        """``[n, top_k]``: every id is twice as likely as the next."""
        row = -np.log(2.0) * np.arange(1, self._top_k + 1)
        return np.tile(row.astype(np.float32), (n, 1))
