"""Counting what speculation did for one request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.events import RequestStats, SourceCounts
from engine.tree import TokenTree


@dataclass(slots=True)
class StatsCounter:
    """Running figures of one request; every decode forward of the target counts, also those without a draft."""

    n_prompt: int
    began: float = field(default_factory=time.perf_counter)  # seconds
    step_tokens: list[int] = field(default_factory=list)
    n_drafted: int = 0
    n_accepted: int = 0
    max_nodes: int = 0
    by_source: dict[str, SourceCounts] = field(default_factory=dict)
    n_preempted: int = 0
    n_cached: int = 0  # tokens of the prompt that were found in the cache

    def count_step(self, tree: TokenTree, accepted: Sequence[int], n_emitted: int) -> dict[str, SourceCounts]:
        """One decode forward; returns the step's own counts by source."""
        self.step_tokens.append(n_emitted)
        self.max_nodes = max(self.max_nodes, len(tree))
        step = count_sources(tree, accepted)
        for name, counts in step.items():
            before = self.by_source.get(name)
            self.by_source[name] = counts if before is None else before.plus(counts)
            self.n_drafted += counts.drafted
            self.n_accepted += counts.accepted
        return step

    def freeze(self) -> RequestStats:
        """The figures as they leave the engine."""
        return RequestStats(
            prompt_tokens=self.n_prompt,
            target_forwards=len(self.step_tokens),
            drafted_tokens=self.n_drafted,
            accepted_tokens=self.n_accepted,
            step_tokens=list(self.step_tokens),
            max_nodes_used=self.max_nodes,
            by_source=dict(self.by_source),
            seconds=time.perf_counter() - self.began,
            preemptions=self.n_preempted,
            cached_tokens=self.n_cached,
        )


def count_sources(tree: TokenTree, accepted: Sequence[int]) -> dict[str, SourceCounts]:
    """What every source did in one tree; sources that proposed nothing to be accepted are left out."""
    n_sources = len(tree.source_names)
    counts = [[0] * len(SourceCounts._fields) for _ in range(n_sources)]
    taken = set(accepted)
    for node, (owner, proposers) in enumerate(zip(tree.sources, tree.proposers, strict=True)):
        if tree.probe[node]:
            continue
        hit = node in taken
        counts[owner][0] += 1
        counts[owner][1] += hit
        counts[owner][4] += hit and proposers == 1 << owner
        for source in range(n_sources):
            if proposers >> source & 1:
                counts[source][2] += 1
                counts[source][3] += hit
    named = zip(tree.source_names, counts, strict=True)
    return {name: SourceCounts(*values) for name, values in named if values[2]}
