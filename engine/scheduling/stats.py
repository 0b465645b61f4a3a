"""Counts steps, drafted and accepted nodes of one request, and its times."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.events import RequestStats, SourceCounts, histogram
from engine.protocol import Decision
from engine.tree import TokenTree


@dataclass(slots=True)
class StatsCounter:
    """Running figures of one request; every decode step counts, also those without a draft."""

    n_prompt: int
    began: float = field(default_factory=time.perf_counter)  # seconds
    entered: float | None = None  # seconds; when the sequence first owned KV blocks
    prefilled: float | None = None  # seconds; when its text was in the cache and its first token drawn
    step_tokens: list[int] = field(default_factory=list)
    step_accepted: list[int] = field(default_factory=list)  # drafted nodes that each decode step accepted
    n_drafted: int = 0
    n_accepted: int = 0
    max_nodes: int = 0
    by_source: dict[str, SourceCounts] = field(default_factory=dict)
    decisions: Counter[Decision] = field(default_factory=Counter)  # decode steps by the method's decision
    n_preempted: int = 0
    n_cached: int = 0  # tokens of the prompt that the cache held

    def count_entry(self) -> None:
        """Record the first time that the sequence leaves the queue."""
        if self.entered is None:
            self.entered = time.perf_counter()

    def count_prefilled(self) -> None:
        """Record the first time that all of the text is in the cache."""
        if self.prefilled is None:
            self.prefilled = time.perf_counter()

    def count_step(
        self, tree: TokenTree, accepted: Sequence[int], n_emitted: int, decision: Decision | None = None
    ) -> dict[str, SourceCounts]:
        """Count one decode step; return its own counts by source."""
        if decision is not None:
            self.decisions[decision] += 1
        self.step_tokens.append(n_emitted)
        self.step_accepted.append(len(accepted))
        if not tree.tokens:
            return {}
        self.max_nodes = max(self.max_nodes, len(tree))
        step = count_sources(tree, accepted)
        for name, counts in step.items():
            before = self.by_source.get(name)
            self.by_source[name] = counts if before is None else before.plus(counts)
            self.n_drafted += counts.drafted
            self.n_accepted += counts.accepted
        return step

    def freeze(self) -> RequestStats:
        """Return the figures as they leave the engine."""
        now = time.perf_counter()
        prefilled = now if self.prefilled is None else self.prefilled
        entered = prefilled if self.entered is None else self.entered
        return RequestStats(
            prompt_tokens=self.n_prompt,
            target_forwards=len(self.step_tokens),
            drafted_tokens=self.n_drafted,
            accepted_tokens=self.n_accepted,
            step_tokens=list(self.step_tokens),
            accepted_steps=histogram(self.step_accepted),
            max_nodes_used=self.max_nodes,
            by_source=dict(self.by_source),
            seconds=now - self.began,
            queue_seconds=entered - self.began,
            prefill_seconds=prefilled - entered,
            decode_seconds=now - prefilled,
            preemptions=self.n_preempted,
            cached_tokens=self.n_cached,
            decisions={f"{decision.tier}:{decision.reason}": n for decision, n in self.decisions.items()},
        )


def count_sources(tree: TokenTree, accepted: Sequence[int]) -> dict[str, SourceCounts]:
    """Return the counts of one tree by source; sources that proposed only probes are left out."""
    names = tree.source_names
    counts = [[0] * len(SourceCounts._fields) for _ in names]
    kinds = list(zip(tree.sources, tree.proposers, strict=True))
    if True in tree.probe:
        kinds = [kind for kind, probe in zip(kinds, tree.probe, strict=True) if not probe]
    for (owner, proposers), n in Counter(kinds).items():
        counts[owner][0] += n
        for source in range(len(names)):
            counts[source][2] += n * (proposers >> source & 1)
    for node in accepted:
        owner, proposers = tree.sources[node], tree.proposers[node]
        counts[owner][1] += 1
        counts[owner][4] += proposers == 1 << owner
        for source in range(len(names)):
            counts[source][3] += proposers >> source & 1
    return {name: SourceCounts(*values) for name, values in zip(names, counts, strict=True) if values[2]}
