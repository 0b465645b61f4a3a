"""Where in a predicted text the written one is: a few places, each with its probability.

A written token agrees with the prediction, or it begins or goes on with an edit: it was inserted, it replaces some
predicted tokens, or predicted tokens before it were left out. Every place is followed through all of these, by Bayes'
rule (the forward algorithm of an alignment, cut to its best places): so the places right behind a token that was not
predicted have their probabilities at once, and those that what follows does not confirm fade. Where no near place
explains a token, places anywhere in the prediction join that end with the longest part of what was written.
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

import numpy as np

from engine.tree import IntArray
from speculators.ngrams.occurrences import Occurrences
from speculators.prediction.rates import Rates
from speculators.prediction.replacements import Replacements

FIRST_RUN = 4  # tokens of agreement that the beginning of a prediction is trusted like
INSERTED = 0.3  # of a token that was not predicted: the same predicted token comes next
REPLACED = (0.4, 0.12, 0.06, 0.04)  # one predicted token, or two, three, four are not written
LEFT_OUT, LEFT_OUT_DECAY = 0.1, 0.85  # one predicted token before it is not written; each more
FARTHEST = 48  # tokens that are left out, but for jumps
MOVED = 0.02  # the text goes on anywhere in the prediction
SPELLED = 0.95  # a known replacement goes on as it did before
LONGEST = 16  # tokens of a match anywhere
MOST_MATCHES = 6  # of these that are followed
LEAST = 1e-3  # weight of a place that is followed
LOST = 48  # tokens without three agreed ones in a row, until only matches anywhere are looked for ...
FOUND = 4  # ... of so many tokens
SURE = 0.5  # weight of a place whose edits and agreement count


class Place(NamedTuple):
    """A position that the written text may have in the predicted one."""

    position: int  # of the predicted token that comes next
    weight: float  # its probability
    run: int  # tokens that agreed in a row; 0 inside an edit
    spelled: tuple[int, ...] = ()  # tokens of a known replacement that come first


class Alignment:
    """The places of one request.

    Args:
        predicted: token ids, ``[n]`` int32; one that is -1 is never written.
        most: places that are followed.
    """

    def __init__(self, predicted: IntArray, most: int) -> None:
        self.predicted = predicted
        self.places = [Place(0, 1.0, FIRST_RUN)]
        self.rates = Rates()
        self.replacements = Replacements()
        self.n_read = 0  # written tokens
        self._most = most
        self._occurrences = Occurrences()
        self._logs = [0.0]  # of the probability of all written tokens, behind each of the last
        self._counts: dict[int, int] | None = None  # of predicted tokens; made when first needed
        self.has_agreed = False  # whether its beginning, or three tokens in a row, were ever predicted
        self._agreed = (0, 0)  # predicted and written position behind the last tokens that agreed
        self._n_lost = 0  # written tokens since three in a row agreed

    @property
    def is_lost(self) -> bool:
        """Whether nothing written lately was predicted."""
        return self._n_lost >= LOST

    def read(self, written: IntArray) -> None:
        """Follow what was written since the last call; ``written`` ``[t]`` holds all of it."""
        while self.n_read < len(written):
            if self.is_lost:
                self.n_read = len(written)
                self._find_again(written)
            elif len(self.places) > 1 or self.places[0].spelled or not self._agree(written):
                self._follow(written, self.n_read)
                self.n_read += 1
            self._note_edit(written)

    def _agree(self, written: IntArray) -> int:
        """Follow the one place as far as it agrees; returns the number of tokens."""
        place = self.places[0]
        ahead = self.predicted[place.position : place.position + len(written) - self.n_read]
        differs = np.flatnonzero(ahead != written[self.n_read : self.n_read + len(ahead)])
        n = int(differs[0]) if len(differs) else len(ahead)
        if n:
            if self.replacements.by_first:
                for position in range(place.position, place.position + n):
                    self.replacements.passed(self.predicted, position, int(self.predicted[position]))
            self.rates.agreed(place.run, n)
            self.places = [place._replace(position=place.position + n, run=place.run + n)]
            self.n_read += n
            self._note_run(n)
            self._logs = [0.0]
        return n

    def _follow(self, written: IntArray, at: int) -> None:
        """One more token, from all places."""
        token = int(written[at])
        found: dict[tuple[int, tuple[int, ...]], Place] = {}
        agreed = 0.0
        for place in self.places:
            agreed += self._step(found, place, token)
        if agreed < SURE:
            self._match(found, written[: at + 1])
        total = sum(place.weight for place in found.values())
        self._logs = [*self._logs[-LONGEST:], self._logs[-1] + log(total)]
        best = sorted(found.values(), key=lambda place: -place.weight)[: self._most]
        scale = sum(place.weight for place in best)
        kept = [place for place in best if place.weight >= LEAST * scale]
        scale = sum(place.weight for place in kept)
        self.places = [place._replace(weight=place.weight / scale) for place in kept]
        self._note_run(1)

    def _step(self, found: dict[tuple[int, tuple[int, ...]], Place], place: Place, token: int) -> float:
        """Where a place leads to with a token; returns the weight with which it agreed."""
        position, weight, run, spelled = place
        if spelled:
            if spelled[0] == token:
                _add(found, Place(position, weight * SPELLED, run + 1, spelled[1:]))
                return weight
            weight *= 1.0 - SPELLED
        rate, is_edge = self.rates.of(run), position >= len(self.predicted)
        agrees = not is_edge and int(self.predicted[position]) == token
        self.rates.learn(run, weight, weight * agrees)
        known = [] if is_edge else self.replacements.at(self.predicted, position)
        for one in known:
            if one.new[0] == token:
                after = position + len(one.old)
                _add(found, Place(after, weight * one.rate, max(run, 1), one.new[1:]))
        if known and weight > SURE:
            self.replacements.passed(self.predicted, position, token)
        if agrees:
            _add(found, Place(position + 1, weight * rate, run + 1))
            return weight
        self._edit(found, position, weight * (1.0 - rate), token)
        return 0.0

    def _edit(self, found: dict[tuple[int, tuple[int, ...]], Place], position: int, weight: float, token: int) -> None:
        """A token that was not predicted at a position."""
        new = weight * self._frequency(token)
        _add(found, Place(position, new * INSERTED, 0))
        for more, share in enumerate(REPLACED, 1):
            if position + more <= len(self.predicted):
                _add(found, Place(position + more, new * share, 0))
        for skipped in np.flatnonzero(self.predicted[position + 1 : position + 1 + FARTHEST] == token).tolist():
            share = LEFT_OUT * LEFT_OUT_DECAY**skipped
            _add(found, Place(position + skipped + 2, weight * share, 1))

    def _match(self, found: dict[tuple[int, tuple[int, ...]], Place], written: IntArray) -> None:
        """Places anywhere that end with the longest part of what was written, of equals the nearest."""
        expected = self.places[0].position
        for length, position in self._matches(written, expected):
            since = self._logs[max(-length, -len(self._logs))]
            weight = MOVED / len(self.predicted) * exp(min(since - self._logs[-1], 50.0))
            key = position, ()
            if key not in found or found[key].weight < weight:
                found[key] = Place(position, weight, length)

    def _matches(self, written: IntArray, expected: int) -> list[tuple[int, int]]:
        """(length, position) of the best matches."""
        if len(self.predicted) == 0:
            return []
        lengths, starts = self._occurrences.matches(self.predicted, written, LONGEST)
        order = np.lexsort((np.abs(starts - expected), -lengths))[:MOST_MATCHES]
        return list(zip(lengths[order].tolist(), starts[order].tolist(), strict=True))

    def repeated(self, written: IntArray, longest: int) -> int:
        """How many tokens at the end of ``written``, at most ``longest``, stand in the prediction in the same order."""
        lengths, _ = self._occurrences.matches(self.predicted, written, longest)
        return int(lengths.max(initial=0))

    def _find_again(self, written: IntArray) -> None:
        """Long matches alone bring a text back that has left the prediction."""
        found = [match for match in self._matches(written, self.places[0].position) if match[0] >= FOUND]
        if found:
            longest = [match for match in found if match[0] == found[0][0]]
            self.places = [Place(position, 1.0 / len(longest), length) for length, position in longest]
            self._n_lost, self._logs = 0, [0.0]

    def _note_run(self, n: int) -> None:
        """``n`` more tokens were written; the likeliest place says how many agree."""
        agrees = self.places[0].run >= 3 and self.places[0].position > 0
        self._n_lost = 0 if agrees else self._n_lost + n
        self.has_agreed |= agrees

    def _note_edit(self, written: IntArray) -> None:
        """An edit is over once two tokens agree behind it: then it is known what was replaced, and by what."""
        place = self.places[0]
        if place.run < 2 or place.spelled or place.weight < SURE or place.position == 0:
            return
        (position, at), self._agreed = self._agreed, (place.position, self.n_read)
        self.replacements.add(
            self.predicted[position : place.position - place.run].tolist(),
            written[at : self.n_read - place.run].tolist(),
        )

    def _frequency(self, token: int) -> float:
        """How likely a token is where nothing is known: as in the prediction."""
        if self._counts is None:
            ids, counts = np.unique(self.predicted, return_counts=True)
            self._counts = dict(zip(ids.tolist(), counts.tolist(), strict=True))
        return (self._counts.get(token, 0) + 0.5) / (len(self.predicted) + 50.0)


def _add(found: dict[tuple[int, tuple[int, ...]], Place], place: Place) -> None:
    """Merge with what leads to the same place."""
    key = place.position, place.spelled
    known = found.get(key)
    if known is None:
        found[key] = place
    else:
        heavier = place if place.weight > known.weight else known
        found[key] = heavier._replace(weight=place.weight + known.weight)
