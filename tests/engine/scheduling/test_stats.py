"""What is counted of every step and every source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.events import SourceCounts
from engine.protocol import Branch
from engine.scheduling.stats import StatsCounter, count_sources
from engine.tree import EMPTY_TREE, ROOT, TokenTree


def test_a_trees_counts_by_hand() -> None:
    """pld: 1-2; core: 1-2-3 and 9; pool: a probe 7-8 that is never counted."""
    tree = compose(
        [Branch([1, 2], "pld"), Branch([1, 2, 3], "core"), Branch([9], "core"), Branch([7, 8], "pool", probe=True)], 10
    )
    assert len(tree) == 6
    assert count_sources(tree, [0, 1, 2]) == {
        "pld": SourceCounts(drafted=2, accepted=2, proposed=2, proposed_accepted=2, sole_accepted=0),
        "core": SourceCounts(drafted=2, accepted=1, proposed=4, proposed_accepted=3, sole_accepted=1),
    }
    assert count_sources(tree, []) == {"pld": SourceCounts(2, 0, 2, 0, 0), "core": SourceCounts(2, 0, 4, 0, 0)}
    assert count_sources(EMPTY_TREE, []) == {}


def test_a_tree_without_proposers_counts_its_sources() -> None:
    tree = TokenTree([1, 2], [ROOT, 0], [1, 0], source_names=("a", "b"))
    assert count_sources(tree, [0]) == {"b": SourceCounts(1, 1, 1, 1, 1), "a": SourceCounts(1, 0, 1, 0, 0)}


@st.composite
def counted(draw: st.DrawFn) -> tuple[TokenTree, list[int]]:
    """A tree of guesses and probes by several sources, and some path of nodes that may be accepted."""
    chains = draw(
        st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=4), st.sampled_from("abc"), st.booleans()), max_size=7)
    )
    tree = compose([Branch(tokens, source, probe=probe) for tokens, source, probe in chains], draw(st.integers(0, 15)))
    path: list[int] = []
    while (below := tree.children[(path[-1] if path else ROOT) + 1]) and draw(st.booleans()):
        path.append(draw(st.sampled_from(below)))
    return tree, path


@given(counted())
def test_counts_add_up(case: tuple[TokenTree, list[int]]) -> None:
    tree, accepted = case
    counts = count_sources(tree, accepted)
    assert sum(c.drafted for c in counts.values()) == tree.probe.count(False)
    assert sum(c.accepted for c in counts.values()) == len(accepted)
    for c in counts.values():
        assert 0 <= c.sole_accepted <= c.accepted <= c.drafted <= c.proposed
        assert c.accepted <= c.proposed_accepted <= c.proposed
        assert c.proposed > 0
    assert sum(c.proposed_accepted for c in counts.values()) >= len(accepted)


@given(st.lists(counted(), max_size=6))
def test_a_request_is_the_sum_of_its_steps(steps: list[tuple[TokenTree, list[int]]]) -> None:
    counter = StatsCounter(n_prompt=7)
    by_step = [counter.count_step(tree, accepted, len(accepted) + 1) for tree, accepted in steps]
    stats = counter.freeze()
    assert stats.prompt_tokens == 7
    assert stats.target_forwards == len(steps)
    assert stats.step_tokens == [len(accepted) + 1 for _, accepted in steps]
    assert stats.accepted_tokens == sum(len(accepted) for _, accepted in steps)
    assert sum(stats.accepted_steps) == len(steps)
    assert sum(j * n for j, n in enumerate(stats.accepted_steps)) == stats.accepted_tokens
    assert stats.drafted_tokens == sum(tree.probe.count(False) for tree, _ in steps)
    assert stats.max_nodes_used == max((len(tree) for tree, _ in steps), default=0)
    for name, total in stats.by_source.items():
        own = [counts[name] for counts in by_step if name in counts]
        assert total == tuple(map(sum, zip(*own, strict=True)))
    assert set(stats.by_source) == {name for counts in by_step for name in counts}


def test_what_left_the_counter_does_not_change_any_more() -> None:
    counter = StatsCounter(n_prompt=1)
    tree = compose([Branch([1], "a")], 1)
    counter.count_step(tree, [0], 2)
    stats = counter.freeze()
    counter.count_step(tree, [], 1)
    assert stats.step_tokens == [2]
    assert stats.by_source == {"a": SourceCounts(1, 1, 1, 1, 1)}
    assert counter.freeze().by_source == {"a": SourceCounts(2, 1, 2, 1, 1)}
    assert counter.freeze().seconds >= stats.seconds >= 0.0


def test_the_time_of_a_request_is_that_of_its_phases() -> None:
    counter = StatsCounter(n_prompt=1)
    waits = counter.freeze()
    assert waits.seconds == waits.queue_seconds > 0 == waits.prefill_seconds == waits.decode_seconds
    counter.count_entry()
    counter.count_prefilled()
    entered, prefilled = counter.entered, counter.prefilled
    counter.count_entry()  # again, after a preemption
    counter.count_prefilled()
    assert (counter.entered, counter.prefilled) == (entered, prefilled)
    stats = counter.freeze()
    assert min(stats.queue_seconds, stats.prefill_seconds, stats.decode_seconds) > 0
    assert stats.seconds == pytest.approx(stats.queue_seconds + stats.prefill_seconds + stats.decode_seconds)


def test_counts_have_names() -> None:
    counts = SourceCounts(4, 3, 2, 1, 0).plus(SourceCounts(1, 1, 1, 1, 1))
    assert counts.named == {"drafted": 5, "accepted": 4, "proposed": 3, "proposed_accepted": 2, "sole_accepted": 1}
    with pytest.raises(AttributeError):
        counts.drafted = 1  # type: ignore[misc]
