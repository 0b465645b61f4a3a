"""SPECTRA: guesses of the core and of a library in one tree (SPECTRA, Le et al., 2025, Algorithm 1, line 16).

Guesses of both kinds share the nodes that the core's own guesses may use; probes get theirs as without retrieval. If
nothing is retrieved, the draft is exactly the core's. There are two ways to share:

* ``priority``: the core's guesses first, then retrieval, which has a small reserve.
* ``paper``: the core's guesses, then retrieval's as chains; the list is cut at ``G``, as published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from engine.protocol import Branch, RequestView, Speculator
from engine.tree import ROOT
from speculators.method import Method, MethodContext
from speculators.mixing.fault_isolation import FaultIsolated
from speculators.node_counter import NodeCounter
from speculators.settings import Settings, setting
from speculators.spectra.core import SpectraCore, SpectraCoreConfig, fitting
from speculators.spectra.retrieval import SPECTRA_RETRIEVAL


@dataclass(frozen=True, slots=True)
class SpectraConfig(Settings):
    """How the core and retrieval share a tree."""

    mode: Literal["priority", "paper"] = setting("priority", "how guesses of both share the nodes")
    reserve: int = setting(3, "guesses of N - 1 tokens that priority keeps for retrieval, at most a third", at_least=0)


class Spectra(SpectraCore):
    """SPECTRA-CORE with guesses of a retrieval part, which is switched off for a request once it fails."""

    name = "spectra"

    def __init__(
        self,
        core: SpectraCoreConfig | None = None,
        retrieval: Speculator | None = None,
        config: SpectraConfig | None = None,
    ) -> None:
        super().__init__(core)
        self._sharing = config or SpectraConfig()
        self._retrieval = None if retrieval is None else FaultIsolated(retrieval)

    def begin(self, view: RequestView) -> None:
        super().begin(view)
        if self._retrieval is not None:
            self._retrieval.begin(view)

    def end(self, view: RequestView) -> None:
        super().end(view)
        if self._retrieval is not None:
            self._retrieval.end(view)

    def fitting_guesses(self, view: RequestView, counter: NodeCounter, limit: int) -> list[Branch]:
        """Return guesses of both parts, and add them to ``counter``: at most ``limit`` nodes."""
        retrieved = [] if self._retrieval is None else self._retrieval.propose(view, limit)
        guesses, config = self.guesses(view), self._config
        if not retrieved:
            return fitting(guesses, counter, limit)
        (tree,) = retrieved
        if self._sharing.mode == "paper":
            return fitting((guesses + _chains(tree))[: config.max_guesses], counter, limit)
        reserved = min(self._sharing.reserve * (config.ngram - 1), limit // 3, len(tree.tokens))
        first = fitting(guesses, counter, limit - reserved)
        n = counter.add_branch(tree, limit)
        scores = tree.scores and tree.scores[:n]
        cut = [replace(tree, tokens=tree.tokens[:n], parents=tree.above[:n], scores=scores)] if n else []
        return first + cut + fitting(guesses, counter, limit)


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
    return Spectra(options.settings_of(SpectraCoreConfig), retrieval, settings)


SPECTRA = Method(
    name="spectra",
    factory=_make,
    description="spectra-core, with guesses from a corpus in the same tree",
    source="SPECTRA, Le et al., 2025, Algorithm 1",
    settings=SpectraConfig,
)
