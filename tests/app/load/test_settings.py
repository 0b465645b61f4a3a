"""Prompts, bodies, seeds and flags of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.inputs.prompts import BUILTIN, read_bodies
from app.load.settings import RequestPlan, base_of, common_fields, distinct_of
from engine.errors import ConfigError

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


def written(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_every_form_of_a_prompt_becomes_a_body(tmp_path: Path) -> None:
    spec_bench = {"question_id": 81, "category": "writing", "turns": ["one\u2028", "two"]}
    path = written(tmp_path, spec_bench, "", {"prompt": "three"}, {"messages": MESSAGES, "category": "x"})
    users = [{"messages": [{"role": "user", "content": text}]} for text in ("one\u2028", "three")]
    assert read_bodies(path, "chat") == [*users, {"messages": MESSAGES}]
    path = written(tmp_path, {"turns": ["one", "two"]}, {"prompt": [1, 2]})
    assert read_bodies(path, "completions") == [{"prompt": "one"}, {"prompt": [1, 2]}]
    assert [fields["prompt"] for fields in read_bodies(None, "completions")] == list(BUILTIN)


@pytest.mark.parametrize(
    ("line", "endpoint", "message"),
    [
        ({"messages": MESSAGES}, "completions", "prompts.jsonl, line 2 has messages, which only --endpoint chat takes"),
        ({"prompt": [1, 2]}, "chat", "prompts.jsonl, line 2 has token ids"),
        ({"turns": []}, "chat", "prompts.jsonl, line 2 has none of turns, prompt, messages"),
        ({"prompt": "a", "turns": ["b"]}, "chat", "prompts.jsonl, line 2 has turns and prompt of"),
        ("{", "chat", "prompts.jsonl, line 2: "),
        ({"prompt": 3}, "chat", "prompts.jsonl, line 2: "),
        (None, "chat", "cannot be read"),
        ("", "chat", "at least one prompt"),
    ],
)
def test_an_unusable_file_is_refused_with_its_line(tmp_path: Path, line: object, endpoint: str, message: str) -> None:
    path = tmp_path / "missing.jsonl" if line is None else written(tmp_path, line and {"prompt": "fine"}, line)
    with pytest.raises(ConfigError, match=message):
        read_bodies(path, endpoint)


def test_prompts_repeat_and_seeds_only_with_distinct_questions() -> None:
    bodies: list[dict[str, Any]] = [{"prompt": "a"}, {"prompt": "b"}]
    plan = RequestPlan(bodies, {"model": "m"}, seed=10)
    records = [plan.record(i, 0.0) for i in range(4)]
    assert [(r.prompt, r.seed) for r in records] == [(0, 10), (1, 11), (0, 12), (1, 13)]
    sent = {"model": "m", "prompt": "b", "seed": 13, "stream": True, "stream_options": {"include_usage": True}}
    assert plan.body(records[3]) == sent
    distinct = RequestPlan(bodies, {}, seed=10, distinct=3)
    again = [(r.prompt, r.seed) for r in (distinct.record(i, 0.0) for i in range(5))]
    assert again == [(0, 10), (1, 11), (0, 12), (0, 10), (1, 11)]
    warmup = {distinct.record(-1 - i, 0.0).seed for i in range(5)}
    assert warmup.isdisjoint(distinct.record(i, 0.0).seed for i in range(10_000))


def test_a_null_removes_a_field_and_the_loads_own_fields_are_refused() -> None:
    common = common_fields({"temperature": 0.0, "max_tokens": 5}, {"max_tokens": None, "max_completion_tokens": 5})
    body = RequestPlan([{"messages": []}], {**common, "stream_options": None}).body(
        RequestPlan([{}], {}).record(0, 0.0)
    )
    assert body == {"messages": [], "stream": True, "seed": 0, "temperature": 0.0, "max_completion_tokens": 5}
    for name in ("stream", "n", "prompt", "messages", "seed"):
        with pytest.raises(ConfigError, match=f"--extra sets '{name}'"):
            common_fields({}, {name: 1})


def test_urls_are_accepted_with_and_without_v1() -> None:
    urls = ("http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/")
    assert {base_of(url) for url in urls} == {"http://a:1/v1"}
    assert base_of("http://[::1]:8000") == "http://[::1]:8000/v1"
    for wrong in ("a:1", "http://::1:8000", "http://[::1:8000", "http://:8000", "http://a:99999", "http://a:0"):
        with pytest.raises(ConfigError, match=r"--url is .*; it must be an address such as http://127.0.0.1:8000"):
            base_of(wrong)


def test_the_number_of_repeated_questions_is_checked() -> None:
    given = ((None, 8, 100), (0, 8, 100), (0, 8, 10), (0, 8, None), (20, 8, 100))
    assert [distinct_of(*numbers) for numbers in given] == [None, 8, 5, 8, 20]
    for wrong in ((20, 8, 20), (0, 8, 1)):
        with pytest.raises(ConfigError, match="--repeat-check"):
            distinct_of(*wrong)
