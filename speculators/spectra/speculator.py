"""SPECTRA: internal and external guesses in one tree (SPECTRA, Le et al., 2025, Algorithm 1, line 16).

The core's dictionaries guess, a library of texts guesses (``speculators.spectra.retrieval``), the core's probes go
along. Guesses of both kinds share the nodes that the core's own guesses may take; probes get theirs as without
retrieval. Where nothing is retrieved the draft is the core's to the letter.

Three ways of sharing. ``priority`` takes internal guesses first and retrieval fills what they leave, sure of a small
reserve. ``score`` keeps the nodes with the highest path probability of both: estimates are retrieval's own
shares and, for the core, how often each dictionary was right at each depth; all of them calibrated by what came
true. ``paper`` appends retrieval's guesses as chains and cuts the list at ``G``, with no reserve, as published.
docs/methods/spectra.md has the figures: ``score`` accepts about as much as ``priority`` and takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from msgspec.structs import replace

from engine.errors import ConfigError
from engine.protocol import Branch, Outcome, RequestView, Speculator
from engine.tree import ROOT
from speculators.method import Method, MethodContext
from speculators.mixing.candidates import Candidates, Probability
from speculators.mixing.estimates import DEPTHS, Estimates
from speculators.mixing.fault_isolation import FaultIsolated
from speculators.node_counter import NodeCounter
from speculators.spectra.core import BACKWARD, FORWARD, SpectraCore, SpectraCoreConfig, fitting
from speculators.spectra.retrieval import SpectraRetrieval, SpectraRetrievalConfig


@dataclass(frozen=True, slots=True)
class SpectraConfig:
    """How the two parts share a tree.

    Raises:
        ConfigError: a value is out of range.
    """

    mode: Literal["score", "priority", "paper"] = "priority"
    reserve: int = 3  # guesses of N - 1 tokens that retrieval is sure of by priority, at most a third of all

    def __post_init__(self) -> None:
        if self.mode not in ("score", "priority", "paper"):
            raise ConfigError(f"spectra: mode must be score, priority or paper, got {self.mode!r}")
        if self.reserve < 0:
            raise ConfigError(f"spectra: reserve must be at least 0, got {self.reserve}")


class Spectra:
    """SPECTRA-CORE with guesses from texts outside. Retrieval that fails is switched off for that request.

    Args:
        core: settings of the internal part.
        retrieval: the external part; without one this is the core.
        config: settings.
    """

    name = "spectra"

    def __init__(
        self,
        core: SpectraCoreConfig | None = None,
        retrieval: Speculator | None = None,
        config: SpectraConfig | None = None,
    ) -> None:
        self._config = config or SpectraConfig()
        self._core_config = core or SpectraCoreConfig()
        self._core = SpectraCore(self._core_config)
        self._retrieval = None if retrieval is None else FaultIsolated(retrieval)
        self._estimates = Estimates()
        self._drafted: dict[int, Candidates] = {}  # request id -> what its current tree was chosen from
        self.needs = self._core.needs

    def begin(self, view: RequestView) -> None:
        """Forwarded to both parts."""
        self._estimates.begin(view.request_id, view.request.scope)
        self._core.begin(view)
        if self._retrieval is not None:
            self._retrieval.begin(view)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Guesses of both, then probes; together at most ``budget`` nodes."""
        room = self._core.guess_nodes(budget)
        found = [] if self._retrieval is None else self._retrieval.propose(view, room)
        if not found:
            return self._core.propose(view, budget)
        (external,) = found
        guesses = self._share(view, external, room)
        counter = NodeCounter()
        for guess in guesses:
            counter.add_branch(guess)
        return guesses + self._core.probes(view, counter, budget)

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """The core learns; what was claimed is held against what came true."""
        candidates = self._drafted.pop(view.request_id, None)
        if candidates is not None and len(outcome.tree):
            self._estimates.observe(view.request_id, outcome, candidates.claims_of(outcome.tree))
        self._core.observe(view, outcome)

    def end(self, view: RequestView) -> None:
        """Forwarded to both parts."""
        self._estimates.end(view.request_id)
        self._drafted.pop(view.request_id, None)
        self._core.end(view)
        if self._retrieval is not None:
            self._retrieval.end(view)

    def _share(self, view: RequestView, external: Branch, room: int) -> list[Branch]:
        """The guesses that are drafted, ``room`` nodes at most."""
        mode = self._config.mode
        internal = self._core.guesses(view, labelled=mode == "score" or self._core_config.label_dictionaries)
        if mode == "score":
            return self._by_score(view, [*internal, external], room)
        if mode == "priority":
            return self._by_priority(internal, external, room)
        return fitting((internal + _chains(external))[: self._core_config.max_guesses], NodeCounter(), room)

    def _by_score(self, view: RequestView, guesses: Sequence[Branch], room: int) -> list[Branch]:
        """The nodes of highest path probability; dictionaries are estimated apart, and counted apart on request."""
        candidates = self._drafted[view.request_id] = Candidates(self.name)
        probability = self._probabilities()
        for guess in guesses:
            candidates.add(guess, probability, view.request_id)
        best = candidates.best(room)
        if best is None:
            return []
        if self._core_config.label_dictionaries or best.proposers is None:
            return [best]
        return [replace(best, proposers=[_unlabelled(sources) for sources in best.proposers])]

    def _probabilities(self) -> Probability:
        """The estimates of one step: what depends on source and depth alone is worked out once."""
        rates: dict[tuple[str, int], float] = {}
        factors: dict[tuple[str, int], float] = {}
        estimates = self._estimates

        def probability(request_id: int, source: str, depth: int, claim: float | None) -> float:
            key = (source, depth if depth < DEPTHS else DEPTHS)
            if claim is None:
                rate = rates.get(key)
                if rate is None:
                    rate = rates[key] = estimates.probability(request_id, source, depth, None)
                return rate
            factor = factors.get(key)
            if factor is None:
                factor = factors[key] = estimates.factor(request_id, key)
            return claim * factor

        return probability

    def _by_priority(self, internal: list[Branch], external: Branch, room: int) -> list[Branch]:
        """Internal guesses but for the reserve, retrieval, and internal ones again where retrieval leaves room."""
        reserved = min(self._config.reserve * (self._core_config.ngram - 1), room // 3, len(external.tokens))
        counter = NodeCounter()
        first = fitting(internal, counter, room - reserved)
        n_nodes = counter.add_branch(external, room)
        return first + _first_nodes(external, n_nodes) + fitting(internal, counter, room)


@cache
def _unlabelled(sources: tuple[str, ...]) -> tuple[str, ...]:
    """The sources of a node without the dictionaries' labels."""
    return tuple(dict.fromkeys(SpectraCore.name if source in (FORWARD, BACKWARD) else source for source in sources))


def _first_nodes(branch: Branch, n_nodes: int) -> list[Branch]:
    """A tree's first nodes as a branch; nothing of none."""
    if n_nodes == 0 or branch.parents is None or branch.scores is None:
        return []
    return [Branch(branch.tokens[:n_nodes], branch.source, branch.parents[:n_nodes], scores=branch.scores[:n_nodes])]


def _chains(tree: Branch) -> list[Branch]:
    """All paths from the root to a leaf, in the order of the leaves."""
    assert tree.parents is not None
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    inner = set(tree.parents)
    return [Branch(path, tree.source) for node, path in enumerate(paths) if node not in inner]


def _spectra(settings: SpectraConfig, context: MethodContext) -> Spectra:
    """Return both parts, or the core alone where there is nothing to look up."""
    options = context.options
    retrieval = None
    if options.retrieval is not None:
        retrieval = SpectraRetrieval(options.retrieval(), options.of(SpectraRetrievalConfig))
    return Spectra(options.of(SpectraCoreConfig), retrieval, settings)


SPECTRA = Method(
    name="spectra",
    factory=_spectra,
    description="SPECTRA: the core's dictionaries and a corpus in one tree",
    settings=SpectraConfig,
)
