"""Figures worked out by hand on small records; tables and the JSON document show the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.image
import msgspec
import pytest

from app.bench.figures import compare, step_curve, steps_before
from app.bench.records import BenchSetting, TurnRecord
from app.bench.report import document, plots, tables
from app.reporting.summaries import Quartiles


def record(method: str, index: int, steps: list[int], times: list[float], **changes: Any) -> TurnRecord:
    """A record whose prefill took one second."""
    values: dict[str, Any] = {
        "method": method,
        "index": index,
        "prompt_tokens": 4,
        "token_ids": list(range(1 + sum(steps))),
        "step_tokens": steps,
        "step_seconds": times,
        "target_seconds": [time / 2 for time in times],
        "step_nodes": [0 if method == "autoregressive" else 6] * len(steps),
        "seconds": 1 + sum(times),
        "category": "math" if index == 0 else "code",
    }
    return TurnRecord(**(values | changes))


def sample() -> list[TurnRecord]:
    """Two questions of four decode tokens; pld is faster on the first and slower on the second."""
    return [
        record("autoregressive", 0, [1, 1, 1, 1], [1.0, 1.0, 1.0, 1.0]),
        record("autoregressive", 1, [1, 1, 1, 1], [1.0, 1.0, 1.0, 1.0]),
        record("pld", 0, [3, 1], [1.0, 0.5], by_source={"pld": {"drafted": 8, "accepted": 2}}),
        record("pld", 1, [1, 1, 2], [2.0, 4.0, 3.0], by_source={"pld": {"drafted": 3, "accepted": 1}}),
    ]


def test_acceptance_throughput_and_speedup_prompt_by_prompt() -> None:
    [reference, pld] = compare(sample())[BenchSetting()]
    total = pld.total
    assert (pld.method, total.outputs, total.tokens, total.target_forwards) == ("pld", 2, 8, 5)
    assert total.tokens_per_forward == pytest.approx(8 / 5)
    assert total.tokens_per_forward_quartiles == Quartiles(*(4 / 3 + part * 2 / 3 for part in (0.25, 0.5, 0.75)))
    assert total.mic_tp == pytest.approx(10 / (2.5 + 10))  # tokens and times of the prefills count
    assert total.mac_tp == pytest.approx((3 / 1 + 1 / 0.5 + 1 / 2 + 1 / 4 + 2 / 3) / 5)  # decode steps alone
    assert total.outside_target == pytest.approx(0.5)
    assert total.by_source == {"pld": {"drafted": 11, "accepted": 3}}
    assert (pld.by_category["math"].speedup_quartiles, pld.by_category["code"].speedup_quartiles) == (
        Quartiles(2, 2, 2),
        Quartiles(*[0.5] * 3),
    )
    assert total.speedup_quartiles == Quartiles(0.875, 1.25, 1.625)
    assert total.speedup_total == pytest.approx(10 / 12.5)
    assert (reference.total.tokens_per_forward, reference.total.speedup_quartiles) == (1, Quartiles(1, 1, 1))


def test_steps_after_the_start_of_a_loop_are_left_out_of_pre_loop() -> None:
    looping = record("pld", 0, [1, 2, 8], [1.0, 1.0, 1.0], token_ids=[5] * 12)  # its first 8-gram recurs at 1
    other = record("pld", 1, [1, 1], [1.0, 1.0])
    late = record("pld", 2, [3, 9, 9], [1.0] * 3, token_ids=[9, 8, 7, 6, *[5] * 18])  # loops from 5 on
    [row] = compare([looping, other, late])[BenchSetting()]
    assert row.total.looping == pytest.approx(2 / 3)
    assert row.total.tokens_per_forward == pytest.approx((11 + 2 + 21) / 8)
    # Steps begin at 1, 2, 4 (none before 1), at 1, 2 (both), and at 1, 4, 13 (two before 5).
    assert row.total.pre_loop_tokens_per_forward == pytest.approx((0 + 2 + 12) / (0 + 2 + 2))
    cuts = {None: (6, 3), 5: (4, 2), 4: (4, 2), 1: (0, 0)}
    assert {cut: steps_before(cut, [1, 3, 2]) for cut in cuts} == cuts


@pytest.mark.parametrize("where", [0, 4, None])
def test_a_changed_or_missing_token_is_noticed(where: int | None) -> None:
    records = sample()
    if where is None:
        records[3].token_ids.pop()
    else:
        records[3].token_ids[where] += 1
    found = compare(records)
    [reference, pld] = found[BenchSetting()]
    assert (pld.total.identical, pld.total.compared, pld.total.is_identical) == (1, 2, False)
    assert (pld.by_category["math"].is_identical, pld.by_category["code"].is_identical) == (True, False)
    assert reference.total.is_identical is True
    assert document(found, records)["identical_to_autoregressive"] is False
    assert "NOT identical" in tables(found)


def test_unknown_figures_are_none() -> None:
    untimed = [
        TurnRecord(method=m, index=0, prompt_tokens=2, token_ids=[1, 2, 3], step_tokens=steps, category="chat")
        for m, steps in (("autoregressive", [1, 1]), ("pld", [2]))
    ]
    total = compare(untimed)[BenchSetting()][1].total
    assert (total.tokens_per_forward, total.is_identical) == (2, True)
    assert (total.speedup, total.speedup_total, total.mic_tp, total.mac_tp) == (None,) * 4
    assert step_curve(untimed) == {}
    assert document(compare(untimed), untimed)["methods"]["pld"]["speedup"] is None
    unreferenced = sample()[2:]
    assert compare(unreferenced)[BenchSetting()][0].total.is_identical is None
    assert document(compare(unreferenced), unreferenced)["identical_to_autoregressive"] is None
    assert "no autoregressive decoding to compare" in tables(compare(unreferenced))
    one_token = [record(m, 0, [], []) for m in ("autoregressive", "pld")]
    total = compare(one_token)[BenchSetting()][1].total
    assert (total.tokens_per_forward, total.pre_loop_tokens_per_forward, total.mac_tp) == (None, None, None)
    assert total.mic_tp == 1
    json.dumps(document(compare(one_token), one_token), allow_nan=False)


def test_the_document_and_the_tables_show_the_figures() -> None:
    records = sample()
    shown = json.loads(json.dumps(document(compare(records), records)))
    pld = shown["methods"]["pld"]
    keys = {"tokens_per_forward", "speedup", "mic_tp", "mac_tp", "identical_to_autoregressive"}
    assert keys | {"by_category"} <= set(pld)
    assert list(pld["by_category"]) == ["math", "code"]
    assert keys <= set(pld["by_category"]["math"])
    assert (pld["tokens_per_forward"], pld["speedup"]) == (1.6, 1.25)
    assert pld["speedup_quartiles"] == {"low": 0.875, "median": 1.25, "high": 1.625}
    assert shown["identical_to_autoregressive"] is True
    text = tables(compare(records))
    assert text.startswith("## greedy, cold\n")
    assert "Every output is identical to autoregressive decoding's." in text
    [line] = [line for line in text.splitlines() if line.startswith("| pld") and "2/2" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["pld", "1.60", "1.60", "1.25 (0.88 - 1.62)", "0.80", "0.8", "1.3", "50.0%", "2/2"]
    assert "### median speed-up by category" in text


def test_only_known_figures_are_plotted(tmp_path: Path) -> None:
    untimed = [msgspec.structs.replace(one, step_seconds=[], target_seconds=[], seconds=0.0) for one in sample()]
    cases = [(sample(), ["sources", "speedup", "step_time", "tau"]), (untimed, ["sources", "tau"])]
    cases.append((sample()[:2], ["speedup", "step_time", "tau"]))
    for i, (records, names) in enumerate(cases):
        folder = tmp_path / str(i)
        folder.mkdir()
        drawn = plots(compare(records), records, folder)
        assert sorted(path.stem for path in drawn) == names == sorted(path.stem for path in folder.iterdir())
        assert all(matplotlib.image.imread(path).std() > 0.01 for path in drawn)
