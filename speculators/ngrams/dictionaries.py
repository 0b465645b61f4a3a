"""N-gram storage: the forward and the backward dictionary of SPECTRA-CORE (SPECTRA, Le et al., 2025, Algorithm 1).

Lookahead keeps its n-grams in the forward one. Both hold Python ints and tuples only; looking up changes nothing. Both
are bounded by *two generations*: what is learnt goes to the young one; when that has reached half of the bound it
becomes the old one, and the old one, which holds what was learnt least recently, is dropped whole. That costs no
bookkeeping per entry, which an exact LRU list would.
"""

from __future__ import annotations

from collections.abc import Sequence

Tokens = tuple[int, ...]


class ForwardDictionary:
    """``S_fwd``: a token and the sequences that followed it, for *quantity* of guesses.

    Args:
        per_key: sequences kept per token, the most recent ones.
        max_keys: tokens kept. A sequence of four tokens takes about 0.1 kB, a key with a full list about 2 kB.
        drop_prefixes: forget a sequence when the same one with a token more is learnt for the same token (the pool
            teaches every sequence token by token): in a tree the shorter one adds no node, and takes a place here.
    """

    def __init__(self, per_key: int, max_keys: int, drop_prefixes: bool) -> None:
        self._per_key = per_key
        self._max_young = max((max_keys + 1) // 2, 1)
        self._drop_prefixes = drop_prefixes
        # token -> its sequences as a dict used as an ordered set, oldest first: moving one to the front is O(1)
        self._young: dict[int, dict[Tokens, None]] = {}
        self._old: dict[int, dict[Tokens, None]] = {}  # shares no key with the young one

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._young) + len(self._old)

    def __contains__(self, token: int) -> bool:
        """Whether something is known to follow ``token``."""
        return token in self._young or token in self._old

    def __getitem__(self, token: int) -> list[Tokens]:
        """The sequences behind ``token``, most recent first; empty when there are none."""
        found = self._young.get(token) or self._old.get(token)
        return list(found)[::-1] if found else []

    def add(self, token: int, sequence: Tokens) -> None:
        """Learn that ``sequence`` followed ``token``; a known one becomes the most recent."""
        known = self._young.get(token)
        if known is None:
            known = self._rejuvenate(token)
        known.pop(sequence, 0)
        if self._drop_prefixes:
            known.pop(sequence[:-1], 0)
        if len(known) >= self._per_key:
            del known[next(iter(known))]
        known[sequence] = None

    def _rejuvenate(self, token: int) -> dict[Tokens, None]:
        """The key's sequences, moved to the young generation."""
        known = self._old.pop(token, None)
        if len(self._young) >= self._max_young:
            self._old, self._young = self._young, {}
        self._young[token] = known = {} if known is None else known
        return known


class BackwardDictionary:
    """``S_bwd``: 1 to N-1 tokens and the one that followed them last, for *quality* of the one long guess.

    Args:
        max_keys: keys kept, about 0.1 kB each.
    """

    def __init__(self, max_keys: int) -> None:
        self._max_young = max((max_keys + 1) // 2, 1)
        self._young: dict[Tokens, int] = {}
        self._old: dict[Tokens, int] = {}

    def __len__(self) -> int:
        """Number of entries; a key learnt again after the generations changed counts twice for a while."""
        return len(self._young) + len(self._old)

    def add(self, key: Tokens, token: int) -> None:
        """Learn that ``token`` followed ``key``; what was known before is replaced."""
        if len(self._young) >= self._max_young:
            self._old, self._young = self._young, {}
        self._young[key] = token

    def get(self, key: Tokens) -> int | None:
        """The token that followed ``key`` last."""
        token = self._young.get(key)
        return self._old.get(key) if token is None else token

    def learn(self, text: Sequence[int], n_known: int, shortest: int, longest: int) -> None:
        """Learn every key of ``shortest`` to ``longest`` tokens that a token of ``text[n_known:]`` followed.

        The tokens before ``n_known`` have been learnt already; ``longest`` of them are enough.
        """
        per_piece = max(self._max_young // longest, 1)  # tokens whose keys fit into a fresh young generation
        for start in range(n_known, len(text), per_piece):
            end = min(start + per_piece, len(text))
            if len(self._young) + longest * (end - start) > self._max_young:
                self._old, self._young = self._young, {}
            for n in range(shortest, longest + 1):
                first = max(start - n, 0)
                keys = zip(*(text[first + i : end] for i in range(n)), strict=False)
                self._young.update(zip(keys, text[first + n : end], strict=False))

    def extend(self, tail: Sequence[int], longest: int, length: int) -> Tokens:
        """The backward guess ``u`` (Algorithm 1, lines 8-14): token by token, backing off from ``longest`` keys to 1.

        ``tail`` holds the last tokens of the context (at least ``longest``, or all there are). Stops when no key of
        any length hits, so that guesses have 0 to ``length`` tokens.
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
