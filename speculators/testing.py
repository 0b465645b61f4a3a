"""For tests and benchmarks: speculators that know the target's output, and a target without a model.

These speculators are not registered: ``create("always-right", extra={"always-right": lambda options:
AlwaysRight(answers)})`` makes one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from engine.top_ids import TopIds
from engine.tree import EMPTY_TREE, ROOT, FloatArray, TokenTree


class AlwaysRight(Speculator):
    """Drafts the next tokens of the known output as a chain: all of them are accepted.

    Args:
        answers: prompt -> output of plain decoding; other prompts get no drafts.
        depth: tokens per draft.
    """

    name = "always-right"
    needs = Needs()

    def __init__(self, answers: Mapping[tuple[int, ...], Sequence[int]], depth: int = 4) -> None:
        self._answers = answers
        self._depth = depth

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        future = self._future(view, budget)
        return [Branch(future, self.name)] if future else []

    def _future(self, view: RequestView, most: int) -> list[int]:
        """Return the next ``depth`` tokens of the output, at most ``most``."""
        context = view.context.view
        answer = self._answers.get(tuple(context[: view.n_prompt].tolist()), ())
        return list(answer[len(context) - view.n_prompt :])[: min(self._depth, most)]


class AlwaysWrong(AlwaysRight):
    """Drafts chains that start with a wrong token and continue with right ones: none is accepted."""

    name = "always-wrong"

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        future = self._future(view, budget)
        return [Branch([(future[0] + 1) % view.vocab_size, *future[1:]], self.name)] if future else []


class RightAmongWrong(AlwaysRight):
    """Drafts trees with three nodes per right token: the token, a wrong sibling, and a child of the last wrong one."""

    name = "right-among-wrong"

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        tokens: list[int] = []
        parents: list[int] = []
        right = wrong = ROOT
        for token in self._future(view, budget // 3):
            tokens += [(token + 1) % view.vocab_size, token, (token + 2) % view.vocab_size]
            parents += [right, right, wrong]
            wrong, right = len(tokens) - 3, len(tokens) - 2
        return [Branch(tokens, self.name, parents)] if tokens else []


class HashTarget:
    """A target whose next token is a hash of the last two tokens, so that its texts repeat n-grams.

    Args:
        vocab_size: at least ``top_k``.
        n_successors: different tokens that may follow a token; with fewer, texts repeat more.
        top_k: ids read back per node.
    """

    def __init__(self, vocab_size: int, n_successors: int = 3, top_k: int = 32) -> None:
        assert vocab_size >= top_k
        self.vocab_size = vocab_size
        self._n_successors = n_successors
        self._top_k = top_k

    def next_token(self, context: Sequence[int]) -> int:
        """Return the argmax after ``context``."""
        last = context[-1]
        before = context[-2] if len(context) > 1 else 0
        choice = (before * 2654435761 + last * 40503 >> 7) % self._n_successors
        return (last * 7919 + choice * 104729 + 13) % self.vocab_size

    def top_ids(self, context: Sequence[int]) -> list[int]:
        """Return the ``top_k`` best next ids, best first, all different."""
        best = self.next_token(context)
        return [(best + i) % self.vocab_size for i in range(self._top_k)]

    def generate(self, prompt: Sequence[int], n_tokens: int) -> list[int]:
        """Return the output of plain greedy decoding, which every method must reproduce."""
        context = list(prompt)
        for _ in range(n_tokens):
            context.append(self.next_token(context))
        return context[len(prompt) :]

    def read_prompt(self, prompt: Sequence[int], start: int = 0) -> Outcome:
        """Return the first token, and the ids after every prompt position from ``start`` on."""
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
        """Return the outcome of a step: greedy verification (Algorithm 3), and the ids after the root and all nodes."""
        tail = list(context[-2:])
        accepted: list[int] = []
        tokens = [self.next_token(tail)]
        node = ROOT
        while right := [child for child in tree.children[node + 1] if tree.tokens[child] == tokens[-1]]:
            node = right[0]
            accepted.append(node)
            tokens.append(self.next_token(tail + tokens))
        nodes = np.arange(ROOT, len(tree), dtype=np.int32)
        ids = [self.top_ids(tail + [tree.tokens[i] for i in tree.path(node)]) for node in nodes.tolist()]
        return Outcome(tokens, tree, accepted, TopIds(nodes, np.array(ids, np.int32), self._logprobs(len(ids))))

    def _logprobs(self, n: int) -> FloatArray:
        """Return ``[n, top_k]``; every id is twice as likely as the next one."""
        row = -np.log(2.0) * np.arange(1, self._top_k + 1)
        return np.tile(row.astype(np.float32), (n, 1))
