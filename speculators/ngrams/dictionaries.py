"""Stores n-grams of a text: the forward and the backward dictionary of SPECTRA-CORE (Le et al. 2025, Algorithm 1).

Both are bounded by two generations: new entries go to the young one. When it holds half of the bound it becomes the old
one, and the previous old one is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

Tokens = tuple[int, ...]


class ForwardDictionary:
    """Maps a token to the sequences that followed it: many short guesses.

    Args:
        per_key: the most sequences of a token; the most recent ones are kept.
        max_keys: the most tokens. A sequence of four tokens takes about 0.1 kB, a token with a full list about 2 kB.
        drop_prefixes: whether a sequence replaces the same one without its last token, which adds no node to a tree.
    """

    def __init__(self, per_key: int, max_keys: int, drop_prefixes: bool) -> None:
        self._per_key = per_key
        self._max_young = max((max_keys + 1) // 2, 1)
        self._drop_prefixes = drop_prefixes
        # The sequences of a token are the keys of a dict, oldest first: moving one to the end takes constant time.
        self._young: dict[int, dict[Tokens, None]] = {}
        self._old: dict[int, dict[Tokens, None]] = {}  # shares no token with the young generation

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __contains__(self, token: int) -> bool:
        return token in self._young or token in self._old

    def __getitem__(self, token: int) -> list[Tokens]:
        """Return the sequences that followed ``token``, most recent first."""
        found = self._young.get(token) or self._old.get(token)
        return list(found)[::-1] if found else []

    def add(self, token: int, sequence: Tokens) -> None:
        """Make ``sequence`` the most recent one of ``token``."""
        known = self._young.get(token)
        if known is None:
            known = self._old.pop(token, None) or {}
            if len(self._young) >= self._max_young:
                self._old, self._young = self._young, {}
            self._young[token] = known
        known.pop(sequence, 0)
        if self._drop_prefixes:
            known.pop(sequence[:-1], 0)
        if len(known) >= self._per_key:
            del known[next(iter(known))]
        known[sequence] = None


class BackwardDictionary:
    """Maps 1 to N - 1 tokens to the one that followed them last; ``max_keys`` entries take about 0.1 kB each."""

    def __init__(self, max_keys: int) -> None:
        self._max_young = max((max_keys + 1) // 2, 1)
        self._young: dict[Tokens, int] = {}
        self._old: dict[Tokens, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, key: Tokens, token: int) -> None:
        self._make_room(1)
        self._young[key] = token

    def get(self, key: Tokens) -> int | None:
        token = self._young.get(key)
        return self._old.get(key) if token is None else token

    def learn(self, text: Sequence[int], n_known: int, shortest: int, longest: int) -> None:
        """Add every key of ``shortest`` to ``longest`` tokens that a token of ``text[n_known:]`` follows.

        ``longest`` tokens before ``n_known`` are enough.
        """
        per_piece = max(self._max_young // longest, 1)  # tokens whose keys fit into an empty young generation
        for start in range(n_known, len(text), per_piece):
            end = min(start + per_piece, len(text))
            self._make_room(longest * (end - start))
            for n in range(shortest, longest + 1):
                first = max(start - n, 0)
                keys = zip(*(text[first + i : end] for i in range(n)), strict=False)
                self._young.update(zip(keys, text[first + n : end], strict=False))

    def extend(self, tail: Sequence[int], longest: int, length: int) -> Tokens:
        """Return up to ``length`` tokens, each the one that followed the longest known key (Algorithm 1, lines 8-14).

        ``tail`` holds the last ``longest`` tokens of the context, or all if there are fewer.
        """
        tokens = tuple(tail[-longest:])
        n_tail = len(tokens)
        while len(tokens) < n_tail + length:
            for start in range(max(len(tokens) - longest, 0), len(tokens)):
                token = self.get(tokens[start:])
                if token is not None:
                    tokens = (*tokens, token)
                    break
            else:
                break
        return tokens[n_tail:]

    def _make_room(self, n: int) -> None:
        if len(self._young) + n > self._max_young:
            self._old, self._young = self._young, {}
