"""Pictures of runs, over time; they show what was seen and compute no figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.reporting.plotting import colour, grid, save
from benchmarks.resilience.observation import Sample
from benchmarks.resilience.phases import Pairs, Phase

FAULT, CALM = "tab:red", "0.6"


def chaos(phases: Sequence[Phase], text: Mapping[int, Sequence[float]], samples: Sequence[Sample], path: Path) -> None:
    """A line of dots per client (``text``: when it received some), a line per fault, and bars where /ready was not
    200."""
    start = min(moments[0] for moments in text.values() if moments)
    end = max(moments[-1] for moments in text.values() if moments)
    figure, (axes,) = grid(1, 1, (max(11.0, (end - start) / 8), 6.0))
    for client, moments in sorted(text.items()):
        axes.plot([at - start for at in moments], [client] * len(moments), ".", markersize=1.5, color="tab:blue")
    for sample, following in pairwise(samples):
        if not sample.is_ready:
            axes.axvspan(sample.at - start, following.at - start, color="tab:orange", alpha=0.25, linewidth=0)
    for phase in phases:
        _mark(axes, phase.acted - start, phase.name, FAULT)
    axes.set(xlabel="seconds; orange: /ready says no", ylabel="stream", xlim=(0, end - start))
    save(figure, path)


def retrieval(rounds: Sequence[Sequence[Phase]], calm: str, gaps: Pairs, lateness: Pairs, path: Path) -> None:
    """All pauses over time, a row per round; phases called ``calm`` are grey."""
    width = max(11.0, 0.2 * (rounds[0][-1].ended - rounds[0][0].began))
    figure, rows = grid(len(rounds), 1, (width, 1 + 3.2 * len(rounds)), sharey=True)
    for axes, phases in zip(rows, rounds, strict=True):
        _round(axes, phases, calm, gaps, lateness)
    rows[-1].set_xlabel("seconds of the round; dotted: the change has taken effect")
    rows[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, markerscale=4)
    save(figure, path)


def _round(axes: Any, phases: Sequence[Phase], calm: str, gaps: Pairs, lateness: Pairs) -> None:
    start, end = phases[0].began, phases[-1].ended
    for pairs, least, shade, label in (
        (gaps, 0.0, "tab:blue", "pause between\ntwo chunks"),
        (lateness, 0.001, "tab:orange", "timer late\n(machine)"),
    ):
        shown = [(at - start, 1000 * value) for at, value in pairs if start <= at < end and value > least]
        axes.plot([at for at, _ in shown], [value for _, value in shown], ".", markersize=2, color=shade, label=label)
    for phase in phases:
        shade = CALM if phase.name == calm else FAULT
        _mark(axes, phase.began - start, phase.name, shade)
        if phase.acted > phase.began:
            axes.axvline(phase.acted - start, color=shade, linewidth=0.8, linestyle=":")
    axes.set(ylabel="ms", xlim=(0, end - start))
    axes.set_ylim(bottom=0)


def soak(samples: Sequence[Sample], path: Path) -> None:
    """Memory by part above, use of the KV cache below."""
    figure, (above, below) = grid(2, 1, (11, 7), sharex=True, height_ratios=(2, 1))
    minutes = [(sample.at - samples[0].at) / 60 for sample in samples]
    last = samples[-1].memory
    for i, part in enumerate(sorted(last, key=last.__getitem__, reverse=True)):
        above.plot(minutes, [sample.memory.get(part, 0.0) for sample in samples], label=part, color=colour(i))
    above.set(ylabel="MiB resident")
    above.set_ylim(bottom=0)
    above.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    used = [(minute, sample.kv_use) for minute, sample in zip(minutes, samples, strict=True)]
    below.plot([m for m, use in used if use is not None], [100 * use for _, use in used if use is not None], lw=0.8)
    below.set(xlabel="minutes", ylabel="% of KV blocks in use")
    save(figure, path)


def _mark(axes: Any, at: float, name: str, shade: str) -> None:
    axes.axvline(at, color=shade, linewidth=0.9)
    axes.text(at, 1.02, name, transform=axes.get_xaxis_transform(), rotation=40, fontsize=8, color=shade)
