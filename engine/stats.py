"""Counting what speculation did for one request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.events import RequestStats
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
    by_source: dict[str, tuple[int, int]] = field(default_factory=dict)
    n_preempted: int = 0

    def count_step(self, tree: TokenTree, accepted: Sequence[int], n_emitted: int) -> dict[str, tuple[int, int]]:
        """One decode forward; returns the step's own (drafted, accepted) by source."""
        self.step_tokens.append(n_emitted)
        self.max_nodes = max(self.max_nodes, len(tree))
        step: dict[str, tuple[int, int]] = {}
        for source, name in enumerate(tree.source_names):
            mine = [node for node, owner in enumerate(tree.sources) if owner == source and not tree.probe[node]]
            if mine:
                step[name] = (len(mine), sum(tree.sources[node] == source for node in accepted))
        for name, (drafted, taken) in step.items():
            before = self.by_source.get(name, (0, 0))
            self.by_source[name] = (before[0] + drafted, before[1] + taken)
            self.n_drafted += drafted
            self.n_accepted += taken
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
        )
