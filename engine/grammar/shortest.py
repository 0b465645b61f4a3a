"""Counts the tokens of the shortest text that a JSON schema admits: a smaller ``max_tokens`` cannot hold an answer."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from engine.grammar.instances import DIGITS, NUMBER, TEXT, Alternatives, Hole, Instances, Part
from engine.grammar.schemas import rewrite_schemas, schema_of

MOST_WORK = 30_000  # visited places; takes 0.1 to 0.5 s
MOST_TAILS = 1000  # lists that are cached between counts
KINDS = {
    TEXT: re.compile(rb'(?:[^"\\]|\\.)+', re.S),
    DIGITS: re.compile(rb"[0-9]+"),
    NUMBER: re.compile(rb"[-+.eE0-9]+"),
}


@dataclass(eq=False, slots=True)
class TextPlace:
    """A place in a text: the next part, and the place after it. ``END`` has neither."""

    part: Part | None
    rest: TextPlace
    heads: list[TextPlace] | None = None  # equivalent places whose next part is bytes or a hole


END = TextPlace.__new__(TextPlace)
END.part, END.rest, END.heads = None, END, [END]


class OutOfWorkError(Exception):
    """A search exceeds ``MOST_WORK``."""


class ShortestTexts:
    """Counts for one vocabulary; ``texts`` are the bytes of all tokens that may be drawn."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._tokens = sorted({text for text in texts if text})
        self._longest = max(map(len, self._tokens), default=0)
        self._runs: dict[tuple[int, bytes, str], dict[bytes, int]] = {}
        self._tails: dict[tuple[int, bytes, Hole], list[bytes]] = {}
        self._places: dict[tuple[Part, TextPlace], TextPlace] = {}
        self._work = 0

    def count(self, source: str) -> int | None:
        """Return the tokens of the shortest text, without the end token; None: unknown, or too much work.

        The count is a lower bound. It is exact unless a pattern, a format, an upper length or several conditions on
        one value rule out every text of that many tokens.
        """
        schema = schema_of(source)
        options = schema.get("x-guidance") or {} if isinstance(schema, dict) else None
        if options not in ({}, {"whitespace_flexible": False}):
            return None
        schema = schema_of(rewrite_schemas(source))
        self._work = 0
        try:
            return self._count(Instances(schema, is_compact=bool(options)).of(schema))
        except (OutOfWorkError, RecursionError):
            return None
        finally:
            self._places.clear()
            if len(self._tails) > MOST_TAILS:
                self._tails.clear()
                self._runs.clear()  # its keys hold ids of lists in ``_tails``

    def _count(self, texts: Alternatives) -> int | None:
        """Search breadth first, by tokens."""
        frontier, n_tokens = {self._place(texts, END)}, 0
        seen = set(frontier)
        while frontier and not any(END in self._heads(place) for place in frontier):
            frontier = {after for place in frontier for after in self._after_token(place, self._tokens)} - seen
            seen |= frontier
            n_tokens += 1
        return n_tokens if frontier else None

    def _after_token(self, place: TextPlace, tokens: list[bytes]) -> set[TextPlace]:
        """Return the places after one token of ``tokens``, which is sorted."""
        found, todo = set(), [(b"", place)]
        while todo:
            prefix, place = todo.pop()
            at = bisect_left(tokens, prefix)
            if at == len(tokens) or not tokens[at].startswith(prefix):
                continue
            if prefix and tokens[at] == prefix:
                found.add(place)
            for head in self._heads(place):
                if isinstance(head.part, bytes):
                    todo.append((prefix + head.part[:1], self._place(head.part[1:], head.rest)))
                elif isinstance(head.part, Hole):
                    longest, tails = self._run(tokens, prefix, head.part)
                    if longest:
                        found.add(self._place(head.part._replace(least=max(0, head.part.least - longest)), head.rest))
                    found |= self._after_token(head.rest, tails)
        return found

    def _run(self, tokens: list[bytes], prefix: bytes, hole: Hole) -> tuple[int, list[bytes]]:
        """Return how many characters a token adds to a hole after ``prefix``, and the tails of tokens that leave it."""
        key = id(tokens), prefix, hole.kind
        if key not in self._runs:
            runs = self._runs[key] = {}
            for at in range(bisect_left(tokens, prefix), len(tokens)):
                if not tokens[at].startswith(prefix):
                    break
                if run := KINDS[hole.kind].match(tokens[at], len(prefix)):
                    tail, length = tokens[at][run.end() :], sum(byte & 0xC0 != 0x80 for byte in run[0])
                    runs[tail] = max(runs.get(tail, 0), length)
        # No token is longer, so all larger values share one list.
        hole = hole._replace(least=min(hole.least, self._longest + 1))
        tails = self._tails.get((*key[:2], hole))
        if tails is None:
            long = (tail for tail, length in self._runs[key].items() if tail and length >= hole.least)
            tails = self._tails[*key[:2], hole] = sorted(long)
        return self._runs[key].get(b"", 0), tails

    def _heads(self, place: TextPlace) -> list[TextPlace]:
        """Return the places with bytes or a hole that may come next, and ``END`` if the text may end."""
        self._work += 1
        if self._work > MOST_WORK:
            raise OutOfWorkError
        if place.heads is None:
            place.heads, todo, seen = [], [place], {place}
            while todo:
                head = todo.pop()
                options = head.part.options if isinstance(head.part, Alternatives) else []
                if not isinstance(head.part, Alternatives):
                    place.heads.append(head)
                    options = [()] if isinstance(head.part, Hole) and not head.part.least else []
                for option in options:
                    after = head.rest
                    for part in reversed(option):
                        after = self._place(part, after)
                    todo += [after] if after not in seen else []
                    seen.add(after)
        return place.heads

    def _place(self, part: Part, rest: TextPlace) -> TextPlace:
        """Return the unique place with this part and rest."""
        return self._places.setdefault((part, rest), TextPlace(part, rest)) if part != b"" else rest
