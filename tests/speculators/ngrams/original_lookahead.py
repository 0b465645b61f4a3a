"""Lookahead decoding as its authors implement it, for comparison with ours."""

from __future__ import annotations

from random import Random

import numpy as np

from engine.protocol import Outcome
from engine.tree import ROOT
from speculators.testing import HashTarget


class LongMemory(HashTarget):
    """A target whose next token depends on the last twelve tokens: a wrong attention mask changes it."""

    def next_token(self, context):
        mixed = 0
        for token in context[-12:]:
            mixed = (mixed * 1000003 + token + 1) % (1 << 61)
        choice = mixed % 9 % self._n_successors  # the first successors are the likelier ones
        return (context[-1] * 7919 + choice * 104729 + 13) % self.vocab_size

    def score(self, context, tree):
        tops = {node: self.top_ids(context + [tree.tokens[i] for i in tree.path(node)]) for node in range(len(tree))}
        tokens, accepted, node = [], [], ROOT
        while True:
            tokens.append(self.next_token(context + tokens))
            node = next((c for c in tree.children[node + 1] if tree.tokens[c] == tokens[-1]), ROOT)
            if node == ROOT:
                return Outcome(tokens, tree, accepted, tops)
            accepted.append(node)


class Original:
    """Lookahead decoding in the authors' form: levels of tokens, one flat row of inputs, a mask, a pool.

    Level 0 of a full window has one token less than the others: the root comes before it.
    """

    def __init__(self, config, prompt, seed):
        self.config = config
        rng = Random(f"{config.seed}/{seed}")
        self.levels = [rng.choices(prompt, k=config.window + config.level - 3)] + [None] * (config.level - 2)
        self.fill_level = 0
        self.pool = {}  # token -> tuples, least recently seen first
        self.n_learnt = len(prompt)
        if config.learn_from_prompt:
            self.n_learnt = max(0, len(prompt) - config.prompt_window)
            self.learn(prompt)

    @property
    def is_full(self):
        return self.levels[-1] is not None

    def inputs(self):
        """Return the window's inputs in the original's order: (token, level, index, position after the root)."""
        rows = []
        for level in range(self.fill_level + 1):
            for i, token in enumerate(self.levels[level]):
                rows.append((token, level, i, 1 + i if level == 0 else level + i))
        return rows

    def mask(self):
        """Return which row sees which, the root first: a causal first block, then one diagonal per level."""
        rows = self.inputs()
        place = {(level, i): n for n, (_, level, i, _) in enumerate(rows, 1)}
        mask = np.zeros((len(rows) + 1, len(rows) + 1), dtype=bool)
        mask[:, 0] = True
        for row, (_, level, i, _) in enumerate(rows, 1):
            for j in range(i + 1 if level == 0 else i):
                mask[row, place[0, j]] = True
            for below in range(1, level + 1):
                mask[row, place[below, i]] = True
        return mask

    def seen(self):
        """Return the texts that the rows of the last level see by the mask."""
        rows, mask, texts = self.inputs(), self.mask(), []
        for n in [n for n, row in enumerate(rows, 1) if row[1] == self.fill_level]:
            shown = sorted((rows[m - 1][3], rows[m - 1][0]) for m in np.flatnonzero(mask[n])[1:])
            assert [position for position, _ in shown] == list(range(1, len(shown) + 1))  # a text without gaps
            texts.append(tuple(token for _, token in shown))
        return texts

    def paths(self):
        """Return the texts that a tree must hold; a window that is not full needs no answer in the first column."""
        texts = self.seen()
        return texts if self.is_full or self.fill_level == 0 else texts[1:]

    def guesses(self, x):
        if not (self.is_full or self.config.guess_while_filling):
            return []
        return [list(guess) for guess in self.pool.get(x[-1], [])[::-1]]

    def observe(self, x, target, tokens):
        new = [target.next_token(x + list(text)) for text in self.seen()]
        levels, last = self.levels, self.fill_level
        if last == 0:
            levels[0], levels[1] = levels[0][1:], new
            self.fill_level = min(1, self.config.level - 2)
        elif not self.is_full:
            for level in range(last + 1):
                levels[level] = levels[level][1:]
            levels[last + 1] = new[1:]
            self.fill_level += 1
        else:
            assert [len(level) for level in levels[1:]] == [self.config.window] * (self.config.level - 2)
            assert len(levels[0]) == self.config.window - 1
            for i in range(self.config.window):
                key = x[-1] if i == 0 else levels[0][i - 1]
                self.add(key, (*(level[i] for level in levels[1:]), new[i]))
            self.levels = [levels[1][1:], *levels[2:], new]  # slides by one, however many tokens were accepted
        if self.config.learn_from_output:
            self.learn(x + list(tokens))

    def learn(self, text):
        depth = self.config.level - 1
        for end in range(self.n_learnt, len(text)):
            if end >= depth:
                self.add(text[end - depth], tuple(text[end - depth + 1 : end + 1]))
        self.n_learnt = len(text)

    def add(self, key, guess):
        """Make a tuple the most recent of its token; the oldest of G is dropped."""
        known = self.pool.setdefault(key, [])
        if guess in known:
            known.remove(guess)
        elif len(known) == self.config.guesses:
            del known[0]
        known.append(guess)
