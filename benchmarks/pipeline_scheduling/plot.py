"""The picture of a run: steps per second against the ideal, and what speculation adds."""

from __future__ import annotations

from pathlib import Path

from app.reporting.plotting import grid, save
from benchmarks.pipeline_scheduling.measurement import StreamRates
from engine.scheduling.drafting import AUTOREGRESSIVE
from engine.simulated.profile import PipelineProfile


def draw(
    profile: PipelineProfile, plain: dict[int, list[StreamRates]], with_drafts: dict[str, list[StreamRates]], path: Path
) -> None:
    """Write the PNG."""
    figure, (left, right) = grid(1, 2, (11, 4.2))
    for i, (n_stages, found) in enumerate(sorted(plain.items())):
        streams = [one.streams for one in found]
        best = [min(n / (n_stages * profile.base_s), profile.flat_sequences / profile.base_s) for n in streams]
        left.plot(streams, best, color=f"C{i}", linewidth=1, linestyle=":")
        left.plot(streams, [one.steps_per_s for one in found], "o", color=f"C{i}", label=f"{n_stages} stages")
    left.set_xscale("log", base=2)
    left.set_xlabel("streams")
    left.set_ylabel("sequence-steps per second (dotted: ideal)")
    base = with_drafts.get(AUTOREGRESSIVE, [])
    for i, (method, found) in enumerate(with_drafts.items()):
        gains = [one.tokens_per_s / before.tokens_per_s for one, before in zip(found, base, strict=True)]
        right.plot([one.streams for one in found], gains, "o-", color=f"C{i}", label=method)
        taus = [one.tokens_per_step for one in found]
        right.plot([one.streams for one in found], taus, color=f"C{i}", linewidth=1, linestyle=":")
    right.set_xscale("log", base=2)
    right.set_xlabel("streams")
    right.set_ylabel("tokens/s over autoregressive\n(dotted: tokens per forward)")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=8)
    save(figure, path)
