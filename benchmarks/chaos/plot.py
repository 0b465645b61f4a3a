"""The picture of a run: when each client got text, and when the server called itself ready. Knows no figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos.phases import Phase
from benchmarks.chaos.streams import Streams, chunk_times
from benchmarks.chaos.watch import Watch


def plot(phases: Sequence[Phase], streams: Streams, watch: Watch, path: Path) -> None:
    """A line of dots per client, a line per blow, and a bar where /health was not ok."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    start = min(record.sent for record in streams.records)
    end = max(record.ended for record in streams.records) - start
    figure, axes = plt.subplots(figsize=(max(11.0, end / 8), 6.0), layout="constrained")
    for client, times in sorted(chunk_times(streams.records).items()):
        axes.plot([at - start for at in times], [client] * len(times), ".", markersize=1.5, color="tab:blue")
    for look, following in zip(watch.looks, watch.looks[1:], strict=False):
        if look.health.get("status") != "ok":
            axes.axvspan(look.at - start, following.at - start, color="tab:orange", alpha=0.25, linewidth=0)
    for phase in phases:
        axes.axvline(phase.struck - start, color="tab:red", linewidth=1.0)
        place = (phase.struck - start, 1.02)
        axes.text(
            *place, phase.blow.name, transform=axes.get_xaxis_transform(), rotation=35, fontsize=8, color="tab:red"
        )
    axes.set(xlabel="seconds; orange: /health says that it is not ready", ylabel="stream", xlim=(0, end))
    figure.savefig(path, dpi=110)
