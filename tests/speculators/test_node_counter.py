from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import Branch
from speculators.node_counter import NodeCounter

CHAINS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=6)


@given(CHAINS)
def test_it_counts_what_the_composer_builds(chains):
    counter = NodeCounter()
    for chain in chains:
        counter.add_branch(Branch(chain, "x"))
    assert counter.n_nodes == len(compose([Branch(chain, "x") for chain in chains], 100))


@given(CHAINS, st.integers(0, 12))
def test_cut_chains_fill_the_limit_as_the_composer_fills_its_budget(chains, limit):
    counter = NodeCounter()
    fits = [counter.add(chain, limit) for chain in chains]
    tree = compose([Branch(chain, "x") for chain in chains], limit)
    assert counter.n_nodes == len(tree)
    for chain, n in zip(chains, fits, strict=True):
        assert n == 0 or tree.find(chain[:n]) is not None
        assert n == len(chain) or tree.find(chain[: n + 1]) is None


@given(CHAINS, st.integers(0, 12))
def test_whole_chains_are_taken_as_the_composer_takes_probes(chains, limit):
    counter = NodeCounter()
    taken = [counter.add_whole(chain, limit) for chain in chains]
    tree = compose([Branch(chain, "x", probe=True) for chain in chains], limit)
    assert counter.n_nodes == len(tree)
    assert [tree.find(chain) is not None for chain in chains] == taken


def test_a_tree_branch_counts_its_nodes_once():
    counter = NodeCounter()
    counter.add_branch(Branch([1, 2, 3, 2], "x", parents=[-1, 0, 0, 0]))
    counter.add_branch(Branch([1, 3, 9], "x"))
    assert counter.n_nodes == 4
