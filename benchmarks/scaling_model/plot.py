"""Predicted against measured steps, and what the model says of larger clusters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.planning.cluster import Cluster
from app.reporting.plotting import grid, save
from benchmarks.scaling_model.check import Checked
from benchmarks.scaling_model.clusters import SOFTWARE, profile


def draw(found: Sequence[Checked], path: Path) -> None:
    """Write the PNG."""
    figure, (left, right) = grid(1, 2, (11, 4.4))
    for i, name in enumerate(dict.fromkeys(one.case for one in found)):
        mine = [one for one in found if one.case == name]
        left.plot([one.predicted for one in mine], [one.measured for one in mine], "o", color=f"C{i}", label=name)
    ends = [min(one.predicted for one in found), max(one.predicted for one in found)]
    left.plot(ends, ends, "k:", linewidth=1)
    left.set_xlabel("predicted sequence-steps per second")
    left.set_ylabel("measured on the simulator")
    streams = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    for i, stages in enumerate((2, 4, 8, 16)):
        cluster = Cluster(profile(stages), stages, *SOFTWARE)
        drafted = [cluster.speculating(n, cluster.best_nodes(n)).tokens_per_s for n in streams]
        right.plot(streams, drafted, color=f"C{i}", label=f"{stages} H100, best tree")
        right.plot(streams, [cluster.decoding(n).tokens_per_s for n in streams], ":", color=f"C{i}")
    right.set_xlabel("streams (memory for their caches not considered)")
    right.set_ylabel("tokens per second, 70B FP16, predicted\n(dotted: no drafts)")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    save(figure, path)
