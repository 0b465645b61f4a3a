"""The picture of a run: all pauses over time, with the phases in which they fell.

Knows no figures: they are in the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.retrieval_chaos.measurement import Result
from benchmarks.retrieval_chaos.pauses import Pairs
from benchmarks.retrieval_chaos.phases import Phase
from benchmarks.retrieval_chaos.steps import NOTHING


def plot(result: Result, gaps: Pairs, path: Path) -> None:
    """All pauses over time, a row per round, with the phases."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rounds = [[phase for phase in result.phases if phase.round == n] for n in range(1, result.phases[-1].round + 1)]
    size = (max(11.0, 0.2 * (rounds[0][-1].ended - rounds[0][0].began)), 1 + 3.2 * len(rounds))
    figure, rows = plt.subplots(len(rounds), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axes, phases in zip(rows[:, 0], rounds, strict=True):
        _plot_round(axes, phases, gaps, result.beats)
    rows[-1, 0].set_xlabel("seconds of the round; dotted: current has moved")
    rows[0, 0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, markerscale=4)
    figure.savefig(path, dpi=110)


def _plot_round(axes: Any, phases: Sequence[Phase], gaps: Pairs, beats: Pairs) -> None:
    start, end = phases[0].began, phases[-1].ended
    for pairs, least, colour, label in (
        (gaps, 0.0, "tab:blue", "pause between\ntwo events"),
        (beats, 0.001, "tab:orange", "timer late\n(machine)"),
    ):
        shown = [(at - start, 1000 * value) for at, value in pairs if start <= at < end and value > least]
        axes.plot([at for at, _ in shown], [value for _, value in shown], ".", markersize=2, color=colour, label=label)
    for phase in phases:
        colour = "0.6" if phase.name == NOTHING else "tab:red"
        axes.axvline(phase.began - start, color=colour, linewidth=0.8)
        if phase.moved > phase.began:
            axes.axvline(phase.moved - start, color=colour, linewidth=0.8, linestyle=":")
        place = (phase.began - start, 1.02)
        axes.text(*place, phase.name, transform=axes.get_xaxis_transform(), rotation=45, fontsize=8, color=colour)
    axes.set(ylabel="ms", xlim=(0, end - start))
    axes.set_ylim(bottom=0)
