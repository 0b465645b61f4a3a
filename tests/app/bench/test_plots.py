"""Plots are real PNG files with something in them; what the records cannot tell is not drawn."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import pytest

from app.bench.figures import compare
from app.bench.plots import plots
from app.bench.records import Record

METHODS = ("autoregressive", "pld", "suffix+token-recycling")


def records(timed: bool, categories: int = 3) -> list[Record]:
    made = []
    for temperature in (0.0, 0.8):
        for i in range(2 * categories):
            for m, method in enumerate(METHODS):
                steps = [m + 1] * 6
                sources = {name: {"drafted": 20, "accepted": 3 * m} for name in method.split("+")} if m else {}
                times = [0.01 * (m + 1)] * 6 if timed else []
                made.append(
                    Record(
                        method=method,
                        index=i,
                        prompt_tokens=2,
                        token_ids=list(range(1 + sum(steps))),
                        step_tokens=steps,
                        temperature=temperature,
                        category=f"category {i % categories}",
                        step_nodes=[8 * m] * 6,
                        step_seconds=times,
                        target_seconds=times,
                        seconds=sum(times),
                        by_source=sources,
                    )
                )
    return made


@pytest.mark.parametrize(
    ("timed", "names"),
    [
        (True, ["sources.png", "speedup.png", "step_time.png", "tau.png"]),
        (False, ["sources.png", "tau.png"]),
    ],
)
def test_every_plot_is_a_png_with_something_in_it(timed: bool, names: list[str], tmp_path: Path) -> None:
    drawn = plots(compare(records(timed)), records(timed), tmp_path)
    assert sorted(path.name for path in drawn) == names == sorted(path.name for path in tmp_path.iterdir())
    for path in drawn:
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        pixels = matplotlib.image.imread(path)[..., :3]
        assert pixels.shape[0] > 300
        assert pixels.shape[1] > 500
        assert len({tuple(colour) for colour in pixels.reshape(-1, 3)[::7].round(2).tolist()}) > 4


def test_many_categories_make_a_wider_plot(tmp_path: Path) -> None:
    widths = []
    for n in (2, 13):
        some = records(True, n)
        plots(compare(some), some, tmp_path)
        widths.append(matplotlib.image.imread(tmp_path / "tau.png").shape[1])
    assert widths[0] < widths[1]


def test_autoregressive_decoding_alone_has_no_sources(tmp_path: Path) -> None:
    alone = [record for record in records(True) if record.is_reference]
    drawn = plots(compare(alone), alone, tmp_path)
    assert sorted(path.name for path in drawn) == ["speedup.png", "step_time.png", "tau.png"]
