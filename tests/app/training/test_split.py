"""Which texts are held out, trained on, cut or left out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.training.examples import NGRAM, Example, most_frequent, source_of, split
from engine.errors import ConfigError


def example(name: str, written: list[int], prompt: int = 3) -> Example:
    return Example(source_of(name), [*range(900, 900 + prompt), *written], prompt)


def some(n: int, per_source: int = 1, first: int = 0) -> list[Example]:
    """Texts that have nothing in common."""
    every = range(first * per_source, (first + n) * per_source)
    return [example(f"question {i // per_source}", list(range(100 * i, 100 * i + 20))) for i in every]


def sources(examples: list[Example]) -> set[str]:
    return {example.source for example in examples}


@given(st.integers(2, 60), st.integers(1, 3), st.floats(0.01, 0.9))
def test_a_source_is_on_one_side_and_stays_there_when_texts_are_added(n: int, per_source: int, share: float) -> None:
    texts = some(n, per_source)
    try:
        found = split(texts, share, 100)
    except ConfigError:
        return
    assert sources(found.train).isdisjoint(sources(found.held_out))
    assert sorted([*found.train, *found.held_out], key=lambda e: e.tokens[3]) == texts
    more = split([*texts, *some(20, 1, 300)], share, 100)
    assert sources(found.train) <= sources(more.train)
    # Where no hash is below the share, one source is held out all the same; added ones may release it.
    assert sources(found.held_out) <= sources(more.held_out) or len(sources(found.held_out)) == 1


def test_about_the_share_is_held_out_and_one_side_alone_is_refused() -> None:
    assert 60 < len(split(some(1000), 0.1, 100).held_out) < 140
    with pytest.raises(ConfigError, match="3 texts leave 3 to train on and 0 to hold out"):
        split(some(1, 3), 0.1, 100)


def test_a_text_that_shares_an_ngram_with_a_held_out_one_is_left_out() -> None:
    texts = some(40)
    before = split(texts, 0.2, 100)
    held = before.held_out[0].written
    alike = example("alike", [1, 2, *held[:NGRAM], 3])
    nearly = example("nearly", [1, 2, *held[: NGRAM - 1], 3])
    in_prompt = Example(source_of("asked"), [*held, 5, 6, 7, 8], len(held))
    after = split([*texts, alike, nearly, in_prompt], 0.2, 100)
    assert sources([alike, nearly, in_prompt]).isdisjoint(sources(after.held_out)), "choose other names"
    assert after.train == [*before.train, nearly, in_prompt]
    assert after.counts["shared_with_held_out"] == 1


def test_loops_and_long_texts_are_cut_and_short_ones_left_out() -> None:
    phrase = list(range(8))
    loops, whole = example("loops", [70, 71, *phrase, 90, *phrase, 91, *phrase]), example("whole", [*phrase, 4, 5])
    found = split([loops, whole, *some(30)], 0.2, 100)
    kept = {e.source: e for e in (*found.train, *found.held_out)}
    assert kept[loops.source].written == [70, 71, *phrase, 90]
    assert kept[whole.source] == whole
    assert found.counts["train_cut_at_loops"] + found.counts["held_out_cut_at_loops"] == 1
    side = "held_out" if loops.source in sources(found.held_out) else "train"
    assert found.counts[f"{side}_cut_at_loops"] == 1
    found = split([example("short", [1, 2, 3]), example("cut away", [*range(9)], prompt=12), *some(30)], 0.2, 14)
    assert found.counts["too_short"] == 2
    assert {len(e.tokens) for e in (*found.train, *found.held_out)} == {14}


def test_texts_that_are_only_measured_on_are_never_trained_on() -> None:
    others, own = some(40), [example(f"question {i}", [*range(9000 + 50 * i, 9020 + 50 * i)]) for i in range(40)]
    found, usual = split(others, 0.2, 100, own), split(others, 0.2, 100)
    assert found.train == usual.train
    assert [e.source for e in found.held_out] == [e.source for e in usual.held_out]
    assert all(e in own for e in found.held_out)


def test_the_most_frequent_tokens_are_those_that_were_written_most() -> None:
    texts = [Example("", [9, 9, 9, 9, 5, 7, 2], 4), Example("", [0, 7, 5, 3], 1)]
    assert most_frequent(texts, 3, 12).equal(torch.tensor([2, 5, 7]))  # of 2 and 3, which occur once, the lower
    assert len(most_frequent(texts, 12, 12)) == 12
