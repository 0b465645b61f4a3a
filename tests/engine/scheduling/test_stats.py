"""Counts of every step and every source."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.events import SourceCounts
from engine.protocol import Branch
from engine.scheduling.stats import StatsCounter, count_sources
from engine.tree import EMPTY_TREE, ROOT, TokenTree


def test_counts_of_a_small_tree() -> None:
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
    no_proposers = TokenTree([1, 2], [ROOT, 0], [1, 0], source_names=("a", "b"))
    assert count_sources(no_proposers, [0]) == {"b": SourceCounts(1, 1, 1, 1, 1), "a": SourceCounts(1, 0, 1, 0, 0)}


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
