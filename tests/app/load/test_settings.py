"""What a run is told: prompts, bodies, seeds, flags that cannot be meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.inputs.prompts import BUILTIN, read_bodies
from app.load.settings import Plan, base_of, common_fields, distinct_of, trusting
from engine.errors import ConfigError

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


def written(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_three_forms_of_prompts_become_messages(tmp_path: Path) -> None:
    spec_bench = {"question_id": 81, "category": "writing", "turns": ["one\u2028", "two"]}
    path = written(tmp_path, spec_bench, "", {"prompt": "three"}, {"messages": MESSAGES, "category": "x"})
    users = [{"messages": [{"role": "user", "content": text}]} for text in ("one\u2028", "three")]
    assert read_bodies(path, "chat") == [*users, {"messages": MESSAGES}]


def test_completions_take_texts_and_token_ids(tmp_path: Path) -> None:
    path = written(tmp_path, {"turns": ["one", "two"]}, {"prompt": [1, 2]})
    assert read_bodies(path, "completions") == [{"prompt": "one"}, {"prompt": [1, 2]}]
    assert [fields["prompt"] for fields in read_bodies(None, "completions")] == list(BUILTIN)


@pytest.mark.parametrize(
    ("line", "endpoint", "said"),
    [
        ({"messages": MESSAGES}, "completions", "line 2 has messages, which only --endpoint chat takes"),
        ({"prompt": [1, 2]}, "chat", "line 2 has token ids"),
        ({"turns": []}, "chat", "line 2 has none of turns, prompt, messages"),
        ({"prompt": "a", "turns": ["b"]}, "chat", "line 2 has turns and prompt of"),
        ("{", "chat", "line 2: "),
        ({"prompt": 3}, "chat", "line 2: "),
    ],
)
def test_a_line_that_cannot_be_asked_is_named(tmp_path: Path, line: object, endpoint: str, said: str) -> None:
    with pytest.raises(ConfigError, match="prompts.jsonl, " + said):
        read_bodies(written(tmp_path, {"prompt": "fine"}, line), endpoint)


def test_a_file_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_bodies(tmp_path / "missing.jsonl", "chat")
    with pytest.raises(ConfigError, match="at least one prompt"):
        read_bodies(written(tmp_path, "", ""), "chat")


def test_prompts_repeat_and_seeds_do_not() -> None:
    plan = Plan([{"prompt": "a"}, {"prompt": "b"}], {"model": "m"}, seed=10)
    records = [plan.record(i, 0.0) for i in range(4)]
    assert [(r.prompt, r.seed) for r in records] == [(0, 10), (1, 11), (0, 12), (1, 13)]
    assert plan.body(records[3]) == {
        "model": "m", "prompt": "b", "seed": 13, "stream": True, "stream_options": {"include_usage": True}
    }  # fmt: skip


def test_distinct_questions_come_again_with_their_seeds() -> None:
    plan = Plan([{"prompt": "a"}, {"prompt": "b"}], {}, seed=10, distinct=3)
    assert [(r.prompt, r.seed) for r in (plan.record(i, 0.0) for i in range(5))] == [
        (0, 10), (1, 11), (0, 12), (0, 10), (1, 11)
    ]  # fmt: skip


def test_the_warm_up_asks_nothing_that_is_asked_later() -> None:
    plan = Plan([{"prompt": "a"}], {}, seed=0, distinct=2)
    assert {plan.record(-1 - i, 0.0).seed for i in range(5)}.isdisjoint(plan.record(i, 0.0).seed for i in range(10_000))


def test_null_takes_a_field_away() -> None:
    common = common_fields({"temperature": 0.0, "max_tokens": 5}, {"max_tokens": None, "max_completion_tokens": 5})
    body = Plan([{"messages": []}], {**common, "stream_options": None}).body(Plan([{}], {}).record(0, 0.0))
    assert body == {"messages": [], "stream": True, "seed": 0, "temperature": 0.0, "max_completion_tokens": 5}


@pytest.mark.parametrize("name", ["stream", "n", "prompt", "messages", "seed"])
def test_what_the_load_sets_itself_is_refused_in_extra(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--extra sets '{name}'"):
        common_fields({}, {name: 1})


def test_urls_are_taken_with_and_without_v1() -> None:
    assert {base_of(url) for url in ("http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/")} == {
        "http://a:1/v1"
    }
    with pytest.raises(ConfigError, match="--url 'a:1' must begin"):
        base_of("a:1")
    assert base_of("http://[::1]:8000") == "http://[::1]:8000/v1"
    for wrong in ("http://::1:8000", "http://[::1:8000", "http://:8000", "http://a:99999", "http://a:0"):
        with pytest.raises(ConfigError, match="names no host and port"):
            base_of(wrong)


def test_how_many_questions_repeat() -> None:
    assert distinct_of(None, 8, 100) is None
    assert (distinct_of(0, 8, 100), distinct_of(0, 8, 10), distinct_of(0, 8, None), distinct_of(20, 8, 100)) == (
        8,
        5,
        8,
        20,
    )
    with pytest.raises(ConfigError, match="--repeat-check 20 must be below --requests 20"):
        distinct_of(20, 8, 20)
    with pytest.raises(ConfigError, match="no request is repeated"):
        distinct_of(0, 8, 1)


def test_a_file_of_authorities_that_is_none_is_named(tmp_path: Path) -> None:
    assert trusting(None) is None
    with pytest.raises(ConfigError, match=r"--tls-ca '.*none\.pem' cannot be read: No such file"):
        trusting(str(tmp_path / "none.pem"))
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(ConfigError, match=r"--tls-ca '.*empty\.pem' holds no PEM certificate"):
        trusting(str(tmp_path / "empty.pem"))
