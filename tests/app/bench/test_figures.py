"""Figures worked out by hand on small records; tables and the document show the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.bench.figures import compare, step_curve, steps_before
from app.bench.records import Record, Setting
from app.bench.report import document, few_turns, tables
from app.reporting.summaries import Quartiles

LOOP = [5] * 12  # its first 8-gram occurs for the second time at 1


def record(method: str, index: int, steps: list[int], seconds: list[float], **changes: Any) -> Record:
    """A record whose prefill took one second."""
    values: dict[str, Any] = {
        "method": method,
        "index": index,
        "prompt_tokens": 4,
        "token_ids": list(range(1 + sum(steps))),
        "step_tokens": steps,
        "step_seconds": seconds,
        "target_seconds": [s / 2 for s in seconds],
        "step_nodes": [0 if method == "autoregressive" else 6] * len(steps),
        "seconds": 1 + sum(seconds),
        "category": "math" if index == 0 else "code",
    }
    return Record(**(values | changes))


def sample() -> list[Record]:
    """Two questions of four decode tokens; pld is faster on the first and slower on the second."""
    return [
        record("autoregressive", 0, [1, 1, 1, 1], [1.0, 1.0, 1.0, 1.0]),
        record("autoregressive", 1, [1, 1, 1, 1], [1.0, 1.0, 1.0, 1.0]),
        record("pld", 0, [3, 1], [1.0, 0.5], by_source={"pld": {"drafted": 8, "accepted": 2}}),
        record("pld", 1, [1, 1, 2], [2.0, 4.0, 3.0], by_source={"pld": {"drafted": 3, "accepted": 1}}),
    ]


def test_acceptance_and_throughput() -> None:
    [reference, pld] = compare(sample())[Setting()]
    assert (pld.method, pld.total.turns, pld.total.tokens, pld.total.forwards) == ("pld", 2, 8, 5)
    assert pld.total.tokens_per_forward == pytest.approx(8 / 5)
    assert pld.total.tokens_per_forward_quartiles == Quartiles(*(4 / 3 + part * 2 / 3 for part in (0.25, 0.5, 0.75)))
    assert pld.total.mic_tp == pytest.approx(10 / (2.5 + 10))  # the prefills' tokens and times count
    assert pld.total.mac_tp == pytest.approx((3 / 1 + 1 / 0.5 + 1 / 2 + 1 / 4 + 2 / 3) / 5)  # decode steps alone
    assert pld.total.outside_target == pytest.approx(0.5)
    assert pld.total.by_source == {"pld": {"drafted": 11, "accepted": 3}}
    assert reference.total.tokens_per_forward == 1
    assert reference.total.mic_tp == pytest.approx(1)


def test_speed_up_is_taken_prompt_by_prompt() -> None:
    [reference, pld] = compare(sample())[Setting()]
    ratios = (5 / 2.5, 5 / 10)
    assert pld.by_category["math"].speedup == Quartiles(ratios[0], ratios[0], ratios[0])
    assert pld.by_category["code"].speedup == Quartiles(ratios[1], ratios[1], ratios[1])
    assert pld.total.speedup == Quartiles(0.875, 1.25, 1.625)
    assert pld.total.speedup_total == pytest.approx(10 / 12.5)
    assert reference.total.speedup == Quartiles(1, 1, 1)


def test_speed_up_is_taken_within_a_repeat() -> None:
    records = [
        record("autoregressive", 0, [1, 1], [1.0, 1.0]),
        record("pld", 0, [2], [0.5]),
        record("autoregressive", 0, [1, 1], [2.0, 3.0], repeat=1),  # the machine was slow, for both
        record("pld", 0, [2], [2.0], repeat=1),
    ]
    [_, pld] = compare(records)[Setting()]
    assert pld.total.speedup_repeats == pytest.approx([3 / 1.5, 6 / 3])
    assert pld.total.speedup == Quartiles(2, 2, 2)


def test_a_loop_ends_the_honest_column() -> None:
    looping = record("pld", 0, [1, 2, 8], [1.0, 1.0, 1.0], token_ids=LOOP)
    other = record("pld", 1, [1, 1], [1.0, 1.0])
    late = record("pld", 2, [3, 9, 9], [1.0] * 3, token_ids=[9, 8, 7, 6, *[5] * 18])  # loops from 5 on
    [row] = compare([looping, other, late])[Setting()]
    assert row.total.looping == pytest.approx(2 / 3)
    assert row.total.tokens_per_forward == pytest.approx((11 + 2 + 21) / 8)
    # Steps begin at 1, 2, 4 (none before 1), at 1, 2 (both), and at 1, 4, 13 (two before 5).
    assert row.total.pre_loop == pytest.approx((0 + 2 + 12) / (0 + 2 + 2))


@pytest.mark.parametrize("where", [0, 2, 4])
def test_one_changed_token_is_noticed(where: int) -> None:
    records = sample()
    records[3].token_ids[where] += 1
    [reference, pld] = compare(records)[Setting()]
    assert (pld.total.identical, pld.total.compared, pld.total.is_identical) == (1, 2, False)
    assert pld.by_category["math"].is_identical is True
    assert pld.by_category["code"].is_identical is False
    assert reference.total.is_identical is True
    found = compare(records)
    assert document(found, records)["identical_to_autoregressive"] is False
    assert "NOT identical" in tables(found)


def test_a_missing_end_is_noticed() -> None:
    records = sample()
    records[2].token_ids.pop()
    assert compare(records)[Setting()][1].total.is_identical is False


def test_greedy_repeats_are_held_against_the_first_and_sampled_ones_are_not() -> None:
    for temperature, same in ((0.0, False), (0.8, True)):
        records = [
            record("autoregressive", 0, [1], [1.0], temperature=temperature, repeat=repeat, token_ids=[repeat, 1])
            for repeat in range(2)
        ]
        [row] = compare(records)[Setting(temperature)]
        assert row.total.is_identical is same


def test_settings_do_not_mix() -> None:
    records = sample()
    changes = {"temperature": 0.8, "warm": True, "token_ids": [1, 1]}
    records += [record(method, 0, [1], [9.0], **changes) for method in ("autoregressive", "pld")]
    found = compare(records)
    assert [setting.label for setting in found] == ["greedy, cold", "temperature 0.8, warm"]
    assert found[Setting()] == compare(sample())[Setting()]
    warm = found[Setting(0.8, True)]
    assert [row.total.tokens_per_forward for row in warm] == [1, 1]
    runs = document(found, records)["runs"]
    assert [(run["temperature"], run["state"]) for run in runs] == [(0.0, "cold"), (0.8, "warm")]


def test_records_without_times_have_acceptance_and_nothing_made_up() -> None:
    records = [
        Record(method=m, index=0, prompt_tokens=2, token_ids=[1, 2, 3], step_tokens=steps, category="chat")
        for m, steps in (("autoregressive", [1, 1]), ("pld", [2]))
    ]
    [_, pld] = compare(records)[Setting()]
    assert pld.total.tokens_per_forward == 2
    assert pld.total.is_identical is True
    assert (pld.total.speedup, pld.total.speedup_total, pld.total.mic_tp, pld.total.mac_tp) == (None,) * 4
    assert step_curve(records) == {}
    assert document(compare(records), records)["methods"]["pld"]["speedup"] is None
    assert "| pld " in tables(compare(records))


def test_records_without_autoregressive_ones_are_compared_with_nothing() -> None:
    records = sample()[2:]
    [pld] = compare(records)[Setting()]
    assert pld.total.is_identical is None
    assert document(compare(records), records)["identical_to_autoregressive"] is None
    assert "no autoregressive decoding to compare" in tables(compare(records))


def test_an_output_of_one_token_has_no_decode_step() -> None:
    records = [record(m, 0, [], []) for m in ("autoregressive", "pld")]
    [_, pld] = compare(records)[Setting()]
    assert (pld.total.tokens_per_forward, pld.total.pre_loop, pld.total.mac_tp) == (None, None, None)
    assert pld.total.mic_tp == 1
    assert json.loads(json.dumps(document(compare(records), records)))["methods"]["pld"]["tokens_per_forward"] is None


def test_the_step_curve_has_a_point_where_there_are_enough_steps() -> None:
    records = [*sample(), record("pld", 5, [1, 1], [8.0, 8.0], step_nodes=[64, 64])]
    curve = step_curve(records)
    assert list(curve) == [0, 6]  # two steps of 64 nodes are too few
    assert curve[0] == Quartiles(0.5, 0.5, 0.5)
    assert curve[6].median == pytest.approx(1.0)  # halves of 1, 0.5, 2, 4, 3


def test_the_document_has_the_names_of_the_contract() -> None:
    records = sample()
    shown = json.loads(json.dumps(document(compare(records), records)))
    assert list(shown["methods"]) == ["autoregressive", "pld"]
    pld = shown["methods"]["pld"]
    keys = {"tokens_per_forward", "speedup", "mic_tp", "mac_tp", "identical_to_autoregressive"}
    assert keys | {"by_category"} <= set(pld)
    assert list(pld["by_category"]) == ["math", "code"]
    assert keys <= set(pld["by_category"]["math"])
    assert pld["tokens_per_forward"] == 1.6
    assert pld["speedup"] == 1.25
    assert pld["speedup_quartiles"] == {"low": 0.875, "median": 1.25, "high": 1.625}
    assert shown["identical_to_autoregressive"] is True


def test_tables_show_the_figures() -> None:
    shown = tables(compare(sample()))
    assert shown.startswith("## greedy, cold\n")
    assert "Every output is identical to autoregressive decoding's." in shown
    [line] = [line for line in shown.splitlines() if line.startswith("| pld") and "2/2" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["pld", "1.60", "1.60", "1.25 (0.88 - 1.62)", "0.80", "0.8", "1.3", "50.0%", "2/2"]
    assert len({len(line) for line in shown.split("###")[1].splitlines() if line.startswith("|")}) == 1
    assert "### median speed-up by category" in shown


def test_without_a_loop_every_step_counts() -> None:
    assert steps_before(None, [1, 3, 2]) == (6, 3)


def test_steps_that_begin_at_or_behind_the_cut_do_not_count() -> None:
    # output: token 0 from the prefill, then steps that begin at 1, 2, 5
    assert steps_before(5, [1, 3, 2]) == (4, 2)
    assert steps_before(4, [1, 3, 2]) == (4, 2)
    assert steps_before(1, [1, 3, 2]) == (0, 0)


def test_a_category_of_few_turns_is_warned_of_by_name() -> None:
    def asked(category: str, n: int, **changes: Any) -> list[Record]:
        return [record("pld", i, [1], [1.0], category=category, **changes) for i in range(n)]

    [warning] = few_turns([*asked("code", 10), *asked("math", 9), *asked("math", 9, repeat=1)])
    assert "math (9)" in warning
    assert "code" not in warning, "repeats are no more prompts, ten turns are enough"
    assert few_turns(asked("code", 10)) == []
