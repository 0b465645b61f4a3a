"""Under a grammar tokens come from the masked distribution of a target of three tokens, whatever is drafted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.grammar.compiler import Grammars
from engine.grammar.words import forbidden
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process
from engine.tree import ROOT, TokenTree
from engine.verify.batch import WalkItem, verify
from tests.support.enumeration import (
    LENGTH,
    VOCAB,
    Context,
    ThreeTokenTarget,
    _logits,
)
from tests.support.grammars import letters, of_lark, of_regex

END = 2
GRAMMARS = {
    "one or two letters": of_regex("a|b|ab|bb"),
    "alternating": of_regex("(ab)*a?"),
    "forced": of_regex("ab"),
    "recursive": of_lark('start: "a" start "b" | "ab"'),
}
TREES = {
    "nothing": TokenTree((), ()),
    "a chain that is allowed": TokenTree([0, 1, END], [ROOT, 0, 1]),
    "a chain that is not": TokenTree([1, 0, 0], [ROOT, 0, 1]),
    "tokens after an end": TokenTree([END, 0, 1], [ROOT, 0, 1]),
    "all of two levels": TokenTree([0, 1, END, 0, 1, END, 0, 1], [ROOT, ROOT, ROOT, 0, 0, 0, 1, 1]),
    "one token twice": TokenTree([0, 0, 1, 1], [ROOT, ROOT, 0, 1]),
}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    made = letters(VOCAB - 1)
    assert not any(made.state(grammar).error for grammar in GRAMMARS.values())
    return made


class MaskedTarget(ThreeTokenTarget):
    """A target of three tokens under a grammar."""

    def __init__(self, grammars: Grammars, name: str, params: SamplingParams) -> None:
        super().__init__(params)
        self._of = grammars, GRAMMARS[name]

    def scores(self, context: Context) -> torch.Tensor:
        grammars, grammar = self._of
        logits = torch.tensor([_logits(context, self.seed, 1.5)])
        logits[0, torch.from_numpy(forbidden(grammars.state(grammar, context).words(), VOCAB))] = -torch.inf
        return process(logits, [self.params], [None])

    def p(self, context: Context) -> np.ndarray:
        return torch.softmax(self.scores(context)[0].double(), -1).numpy()


def texts(target: MaskedTarget, grammars: Grammars, name: str, tree: TokenTree, params: SamplingParams) -> list[int]:
    """A text of up to ``LENGTH`` tokens; every step drafts the same tree."""
    state, tokens = grammars.state(GRAMMARS[name]), [*()]
    while len(tokens) < LENGTH and END not in tokens:
        paths = [(), *(tuple(tree.tokens[n] for n in tree.path(i)) for i in range(len(tree)))]
        rows = torch.tensor([_logits((*tokens, *path), target.seed, 1.5) for path in paths])
        item = WalkItem(tree, 0, params, None, len(tokens), LENGTH - len(tokens), state)
        (walk,) = verify(rows, [item])
        assert not walk.error
        tokens += walk.tokens
    return tokens


@pytest.mark.parametrize(
    ("name", "tree"),
    [
        ("one or two letters", "one token twice"),
        ("alternating", "all of two levels"),
        ("forced", "tokens after an end"),
        ("recursive", "a chain that is not"),
    ],
)
def test_rejection_texts_are_as_frequent_as_masked_decoding_has_them(grammars: Grammars, name: str, tree: str) -> None:
    n, found = 400, dict[Context, int]()
    for seed in range(n):
        params = SamplingParams(temperature=1.0, seed=seed, stop_ids=(END,), verification="rejection")
        target = MaskedTarget(grammars, name, params)
        text = tuple(texts(target, grammars, name, TREES[tree], params))
        padded = (*text, *[END] * (LENGTH - len(text)))
        found[padded] = found.get(padded, 0) + 1
    expected = MaskedTarget(grammars, name, SamplingParams(temperature=1.0)).joint()
    assert len(expected) > 1
    assert set(found) <= {context for context, weight in expected.items() if weight > 0.0}
    for context, weight in expected.items():
        assert abs(found.get(context, 0) / n - weight) <= 4.5 * (weight * (1 - weight) / n) ** 0.5 + 1e-9
