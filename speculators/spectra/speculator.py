"""SPECTRA: guesses of the core and of a library in one tree (SPECTRA, Le et al., 2025, Algorithm 1, line 16).

Guesses of both kinds share the nodes that the core's own guesses may use; probes get theirs as without retrieval. If
nothing is retrieved, the draft is exactly the core's. There are three ways to share:

* ``priority``: the core's guesses first, then retrieval, which has a small reserve.
* ``score``: the nodes of both with the highest path probability. It accepts about as much and takes longer
  (docs/methods/spectra.md).
* ``paper``: the core's guesses, then retrieval's as chains; the list is cut at ``G``, as published.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from msgspec.structs import replace

from engine.protocol import Branch, Outcome, RequestView, Speculator
from engine.tree import ROOT
from speculators.method import Method, MethodContext
from speculators.mixing.fault_isolation import FaultIsolated
from speculators.mixing.merged import CalibratedMerge
from speculators.node_counter import NodeCounter
from speculators.settings import Settings, setting
from speculators.spectra.core import BACKWARD, FORWARD, SpectraCore, SpectraCoreConfig, fitting
from speculators.spectra.retrieval import SPECTRA_RETRIEVAL


@dataclass(frozen=True, slots=True)
class SpectraConfig(Settings):
    """How the core and retrieval share a tree."""

    mode: Literal["score", "priority", "paper"] = setting("priority", "how guesses of both share the nodes")
    reserve: int = setting(3, "guesses of N - 1 tokens that priority keeps for retrieval, at most a third", at_least=0)


class Spectra(Speculator):
    """SPECTRA-CORE with guesses of a retrieval part, which is switched off for a request once it fails.

    Args:
        core: settings of the core.
        retrieval: optional.
        config: how both share a tree.
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
        self._merge = CalibratedMerge(self.name)
        self._parts = [part for part in (self._merge, self._core, self._retrieval) if part is not None]
        self.needs = self._core.needs

    def begin(self, view: RequestView) -> None:
        for part in self._parts:
            part.begin(view)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return guesses of both parts, then probes."""
        room = self._core.guess_nodes(budget)
        retrieved = [] if self._retrieval is None else self._retrieval.propose(view, room)
        if not retrieved:
            return self._core.propose(view, budget)
        guesses = self._share(view, retrieved[0], room)
        counter = NodeCounter()
        for guess in guesses:
            counter.add_branch(guess)
        return guesses + self._core.probes(view, counter, budget)

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        for part in (self._merge, self._core):
            part.observe(view, outcome)

    def end(self, view: RequestView) -> None:
        for part in self._parts:
            part.end(view)

    def _share(self, view: RequestView, retrieved: Branch, room: int) -> list[Branch]:
        """Return guesses of both parts, at most ``room`` nodes."""
        config, labelled = self._core_config, self._core_config.label_dictionaries
        if self._config.mode == "score":  # dictionaries have estimates of their own
            best = self._merge.best(view, [*self._core.guesses(view, labelled=True), retrieved], room)
            return best if labelled else [_unlabelled(branch) for branch in best]
        guesses = self._core.guesses(view, labelled)
        if self._config.mode == "paper":
            return fitting((guesses + _chains(retrieved))[: config.max_guesses], NodeCounter(), room)
        reserved = min(self._config.reserve * (config.ngram - 1), room // 3, len(retrieved.tokens))
        counter = NodeCounter()
        first = fitting(guesses, counter, room - reserved)
        n_nodes = counter.add_branch(retrieved, room)
        return first + _first_nodes(retrieved, n_nodes) + fitting(guesses, counter, room)


def _unlabelled(branch: Branch) -> Branch:
    """Return a merged branch whose nodes name the core in place of its dictionaries."""
    assert branch.proposers is not None
    return replace(branch, proposers=[*map(_without_labels, branch.proposers)])


@cache
def _without_labels(sources: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(SpectraCore.name if source in (FORWARD, BACKWARD) else source for source in sources))


def _first_nodes(tree: Branch, n: int) -> list[Branch]:
    """Return the first ``n`` nodes of a tree as a branch; nothing if there are none."""
    scores = tree.scores and tree.scores[:n]
    return [replace(tree, tokens=tree.tokens[:n], parents=tree.above[:n], scores=scores)] if n else []


def _chains(tree: Branch) -> list[Branch]:
    """Return all paths from the root to a leaf, in the order of the leaves."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.above, strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    inner = set(tree.above)
    return [Branch(path, tree.source) for node, path in enumerate(paths) if node not in inner]


def _make(settings: SpectraConfig, context: MethodContext) -> Spectra:
    """Return both parts, or the core alone without texts to look up."""
    options = context.options
    retrieval = None if options.retrieval is None else SPECTRA_RETRIEVAL.make(context)
    return Spectra(options.of(SpectraCoreConfig), retrieval, settings)


SPECTRA = Method(
    name="spectra",
    factory=_make,
    description="spectra-core, with guesses from a corpus in the same tree",
    source="SPECTRA, Le et al., 2025, Algorithm 1",
    settings=SpectraConfig,
)
