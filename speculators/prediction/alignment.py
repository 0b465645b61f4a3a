"""Tracks where an answer is in its prediction: a few places, each with its probability.

A written token agrees with the prediction, or it belongs to an edit: it was inserted, it replaces predicted tokens, or
predicted tokens before it were left out. Each place is followed through all of these by Bayes' rule. If no place
explains a token, places anywhere in the prediction join: those that follow the longest match with the written text.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from math import exp, log
from typing import NamedTuple

import numpy as np

from engine.tree import IntArray
from speculators.ngrams.occurrences import Occurrences
from speculators.prediction.edits import AgreementRates, Replacements

FIRST_RUN = 4  # the beginning of a prediction is trusted like this many tokens that agreed
INSERTED = 0.3  # P(the same predicted token comes next) after a token that was not predicted
REPLACED = (0.4, 0.12, 0.06, 0.04)  # P(it replaces one, two, three, four predicted tokens)
LEFT_OUT, LEFT_OUT_DECAY = 0.1, 0.85  # P(one predicted token before it is left out), and the factor for each more
MOST_LEFT_OUT = 48  # tokens; farther places are found by matches
JUMP = 0.02  # P(the text continues anywhere in the prediction)
PENDING = 0.95  # P(a known replacement continues as before)
LONGEST_MATCH = 16  # tokens
MOST_MATCHES = 6  # matches that are followed at once
LEAST_WEIGHT = 1e-3  # of a place that is followed
LOST_AFTER = 48  # tokens without three in a row that agree; from then on only matches are looked for
FOUND_MATCH = 4  # tokens of a match that ends this
SURE = 0.5  # weight of a place whose edits and agreement are learnt


class PredictedPlace(NamedTuple):
    """A position in the prediction that the answer may have reached."""

    position: int  # of the predicted token that comes next
    weight: float  # its probability
    run: int  # tokens in a row that agreed; 0 inside an edit
    pending: tuple[int, ...] = ()  # tokens of a known replacement that come first


Found = dict[tuple[int, tuple[int, ...]], PredictedPlace]  # by position and pending tokens


class Alignment:
    """The places of one request; ``predicted`` ``[n]`` int32 has -1 for tokens that the target cannot write."""

    def __init__(self, predicted: IntArray, max_places: int) -> None:
        self.predicted = predicted
        self.places = [PredictedPlace(0, 1.0, FIRST_RUN)]
        self.rates = AgreementRates()
        self.replacements = Replacements()
        self.n_read = 0  # written tokens
        self.has_agreed = False  # whether the beginning, or three tokens in a row, agreed
        self._max_places = max_places
        self._occurrences = Occurrences()
        self._logs = [0.0]  # log-probability of the written text after each of its last tokens
        self._agreed = (0, 0)  # predicted and written position after the last tokens that agreed
        self._n_lost = 0  # written tokens since three in a row agreed

    @property
    def is_lost(self) -> bool:
        """Whether nothing of the last written tokens was predicted."""
        return self._n_lost >= LOST_AFTER

    def read(self, written: IntArray) -> None:
        """Follow the tokens of ``written`` ``[t]``, all of the answer, that are new since the last call."""
        while self.n_read < len(written):
            if self.is_lost:
                self.n_read = len(written)
                self._find_again(written)
            elif len(self.places) > 1 or self.places[0].pending or not self._agree(written):
                self._follow(written[: self.n_read + 1])
                self.n_read += 1
            self._learn_replacement(written)

    def _agree(self, written: IntArray) -> int:
        """Follow the only place as far as it agrees; return the number of tokens."""
        place = self.places[0]
        ahead = self.predicted[place.position : place.position + len(written) - self.n_read]
        differs = np.flatnonzero(ahead != written[self.n_read : self.n_read + len(ahead)])
        n = int(differs[0]) if len(differs) else len(ahead)
        if n:
            if self.replacements.by_first:
                for position in range(place.position, place.position + n):
                    self.replacements.learn(self.predicted, position, int(self.predicted[position]))
            self.rates.learn_run(place.run, n)
            self.places = [place._replace(position=place.position + n, run=place.run + n)]
            self.n_read += n
            self._note_run(n)
            self._logs = [0.0]
        return n

    def _follow(self, written: IntArray) -> None:
        """Follow all places through the last token of ``written``."""
        token = int(written[-1])
        found: Found = {}
        agreed = sum(self._step(found, place, token) for place in self.places)
        if agreed < SURE:
            self._add_matches(found, written)
        total = sum(place.weight for place in found.values())
        self._logs = [*self._logs[-LONGEST_MATCH:], self._logs[-1] + log(total)]
        best = sorted(found.values(), key=lambda place: -place.weight)[: self._max_places]
        scale = sum(place.weight for place in best)
        kept = [place for place in best if place.weight >= LEAST_WEIGHT * scale]
        scale = sum(place.weight for place in kept)
        self.places = [place._replace(weight=place.weight / scale) for place in kept]
        self._note_run(1)

    def _step(self, found: Found, place: PredictedPlace, token: int) -> float:
        """Add the places to which a token leads from ``place``; return the weight with which it agreed."""
        position, weight, run, pending = place
        if pending:
            if pending[0] == token:
                _add(found, PredictedPlace(position, weight * PENDING, run + 1, pending[1:]))
                return weight
            weight *= 1.0 - PENDING
        rate, is_end = self.rates.of(run), position >= len(self.predicted)
        agrees = not is_end and int(self.predicted[position]) == token
        self.rates.learn(run, weight, weight * agrees)
        known = [] if is_end else self.replacements.at(self.predicted, position)
        for one in known:
            if one.new[0] == token:
                after = position + len(one.old)
                _add(found, PredictedPlace(after, weight * one.rate, max(run, 1), one.new[1:]))
        if known and weight > SURE:
            self.replacements.learn(self.predicted, position, token)
        if agrees:
            _add(found, PredictedPlace(position + 1, weight * rate, run + 1))
            return weight
        self._add_edits(found, position, weight * (1.0 - rate), token)
        return 0.0

    def _add_edits(self, found: Found, position: int, weight: float, token: int) -> None:
        """Add the places after a token that was not predicted at ``position``."""
        new = weight * ((self._frequencies[token] + 0.5) / (len(self.predicted) + 50.0))
        for n_replaced, share in enumerate((INSERTED, *REPLACED)):
            if n_replaced == 0 or position + n_replaced <= len(self.predicted):
                _add(found, PredictedPlace(position + n_replaced, new * share, 0))
        for skipped in np.flatnonzero(self.predicted[position + 1 : position + 1 + MOST_LEFT_OUT] == token).tolist():
            share = LEFT_OUT * LEFT_OUT_DECAY**skipped
            _add(found, PredictedPlace(position + skipped + 2, weight * share, 1))

    def _add_matches(self, found: Found, written: IntArray) -> None:
        """Add the places after the longest matches with the end of ``written``, unless they have more weight."""
        for length, position in self._matches(written):
            before = self._logs[max(-length, -len(self._logs))]
            weight = JUMP / len(self.predicted) * exp(min(before - self._logs[-1], 50.0))
            key = position, ()
            if key not in found or found[key].weight < weight:
                found[key] = PredictedPlace(position, weight, length)

    def _matches(self, written: IntArray) -> list[tuple[int, int]]:
        """Return length and end of the longest matches; of equals those nearest to the most probable place."""
        lengths, ends = self._occurrences.matches(self.predicted, written, LONGEST_MATCH)
        order = np.lexsort((np.abs(ends - self.places[0].position), -lengths))[:MOST_MATCHES]
        return list(zip(lengths[order].tolist(), ends[order].tolist(), strict=True))

    def _find_again(self, written: IntArray) -> None:
        """Continue at the longest matches, if they are long enough."""
        matches = self._matches(written)
        longest = [match for match in matches if match[0] >= FOUND_MATCH and match[0] == matches[0][0]]
        if longest:
            self.places = [PredictedPlace(position, 1.0 / len(longest), length) for length, position in longest]
            self._n_lost, self._logs = 0, [0.0]

    def _note_run(self, n: int) -> None:
        """Count ``n`` written tokens as agreed or lost, as the most probable place says."""
        agrees = self.places[0].run >= 3 and self.places[0].position > 0
        self._n_lost = 0 if agrees else self._n_lost + n
        self.has_agreed |= agrees

    def _learn_replacement(self, written: IntArray) -> None:
        """Learn what an edit replaced; it is over once two tokens after it agree."""
        place = self.places[0]
        if place.run < 2 or place.pending or place.weight < SURE or place.position == 0:
            return
        (position, at), self._agreed = self._agreed, (place.position, self.n_read)
        old, new = self.predicted[position : place.position - place.run], written[at : self.n_read - place.run]
        self.replacements.add(old.tolist(), new.tolist())

    @cached_property
    def _frequencies(self) -> Counter[int]:
        return Counter(self.predicted.tolist())


def _add(found: Found, place: PredictedPlace) -> None:
    """Add a place, or its weight to the same place."""
    key = place.position, place.pending
    known = found.get(key)
    if known is not None:
        heavier = place if place.weight > known.weight else known
        place = heavier._replace(weight=place.weight + known.weight)
    found[key] = place
