"""Tables of successors against dictionaries that do the same slowly."""

from collections import Counter, defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from speculators.successors.table import (
    NARROW,
    NONE,
    TAIL,
    WAYS,
    claim,
    count_successor,
    fill_tail,
    find,
    hash_tail,
    learn_text,
    make_table,
    put_successors,
)

U64 = (1 << 64) - 1
ORDERS = (1, 2, 3, 5, 8)
TEXTS = st.integers(2, 5).flatmap(lambda n: st.lists(st.integers(0, n - 1), max_size=60))


def array(tokens):
    return np.array(tokens, np.int32)


def tail_of(tokens):
    tail = np.empty(TAIL, np.int32)
    fill_tail(tail, array(tokens), len(tokens))
    return tail


def key_of(gram):
    return np.uint64(hash_tail(tail_of(gram), len(gram)))


def row_of(table, gram):
    """What the table holds behind a gram: token -> weight, or None."""
    row = find(table, key_of(gram))
    if row == NONE:
        return None
    n = int((np.append(table.ids[row], NONE) == NONE).argmax())
    ids = table.ids[row, :n].tolist()
    assert len(set(ids)) == n
    return dict(zip(ids, table.weights[row, :n].tolist(), strict=True))


def literal_key(gram):
    h = len(gram) * 0x9E3779B97F4A7C15 & U64
    for token in gram:
        h = (h ^ token) * 0xBF58476D1CE4E5B9 & U64
        h ^= h >> 29
    h = h * 0x94D049BB133111EB & U64
    return (h ^ h >> 31) | 1


def literal_counts(text, orders=ORDERS):
    """(gram -> how often each token followed it), grams of all orders."""
    counts = defaultdict(Counter)
    for end in range(1, len(text)):
        for order in orders:
            if order <= end:
                counts[tuple(text[end - order : end])][text[end]] += 1
    return counts


@given(st.lists(st.integers(0, 262143), max_size=12))
def test_tails_hold_the_last_tokens_and_hash_as_64_bit_integers(tokens):
    tail = tail_of(tokens)
    assert tail.tolist() == ([NONE] * TAIL + tokens)[-TAIL:]
    for order in range(1, TAIL + 1):
        wanted = literal_key(tokens[-order:]) if order <= len(tokens) else 0
        assert int(hash_tail(tail, order)) == wanted


def test_sizes_are_powers_of_two_and_orders_tell_grams_apart():
    assert [len(make_table(n, 2, (1,)).keys) for n in (0, 1, 4, 5, 1000, 1024)] == [4, 4, 4, 8, 1024, 1024]
    assert len({int(key_of([7] * order)) for order in range(1, TAIL + 1)}) == TAIL


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 15)), max_size=120))
def test_a_full_bucket_gives_up_what_was_written_longest_ago(actions):
    """Keys share one bucket of a larger table; reading changes nothing."""
    table = make_table(64, 2, (1,))
    keys = [np.uint64((number * 64 + 8) * 2 + 1) for number in range(16)]
    written = {}  # key number -> when
    for time, (writes, number) in enumerate(actions):
        if not writes:
            assert (find(table, keys[number]) != NONE) == (number in written)
            continue
        table.clock[0] += 1
        row = claim(table, keys[number])
        if number not in written:
            assert (table.ids[row] == NONE).all()
            if len(written) == WAYS:
                del written[min(written, key=written.get)]
        table.ids[row] = number
        written[number] = time
        assert {n for n in range(16) if find(table, keys[n]) != NONE} == set(written)
        assert all((table.ids[find(table, keys[n])] == n).all() for n in written)
    assert (table.keys != 0).sum() == table.used[0] == len(written)


@given(TEXTS, st.integers(0, 60))
def test_learnt_texts_are_their_counts_however_they_are_cut(text, cut):
    counts = literal_counts(text)
    for pieces in ([len(text)], [min(cut, len(text)), len(text)]):
        table = make_table(1 << 13, 5, ORDERS)
        learnt = 0
        for end in pieces:
            learn_text(table, array(text[:end]), learnt)
            learnt = end
        assert (table.keys != 0).sum() == table.used[0] == len(counts)
        for gram, followers in counts.items():
            assert row_of(table, gram) == followers


@given(TEXTS, st.integers(0, 60))
def test_learning_the_end_of_a_text_counts_its_tokens_behind_what_stood_before(text, first):
    table = make_table(1 << 13, 5, (1, 3))
    learn_text(table, array(text), first)
    wanted = literal_counts(text, (1, 3))
    before = literal_counts(text[:first], (1, 3))
    for gram, followers in wanted.items():
        left = followers - before.get(gram, Counter())
        assert (row_of(table, gram) or {}) == left


@given(st.lists(st.integers(0, 6), max_size=40), st.integers(1, 4))
def test_the_rarest_successor_of_a_full_row_gives_way(tokens, width):
    table = make_table(4, width, (1,))
    row = claim(table, key_of([1]))
    places = []  # [token, count]
    for token in tokens:
        count_successor(table, row, token)
        known = [place for place in places if place[0] == token]
        if known:
            known[0][1] += 1
        elif len(places) < width:
            places.append([token, 1])
        else:
            places[places.index(min(places, key=lambda place: place[1]))] = [token, 1]
    assert (row_of(table, [1]) or {}) == dict(places)


ROWS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), min_size=1, max_size=10),
        st.lists(st.integers(0, 30), unique=True, max_size=6),
    ),
    max_size=25,
)


@given(ROWS)
def test_the_last_successors_put_behind_a_context_are_those_of_all_its_orders(rows):
    width = 4
    table = make_table(1 << 12, width, ORDERS)
    wanted = {}
    for context, ids in rows:
        weights = np.linspace(0.5, 0.1, len(ids), dtype=np.float32)
        table.clock[0] += 1
        put_successors(table, tail_of(context), array(ids), weights)
        for order in ORDERS:
            if order <= len(context):
                kept = dict(zip(ids[:width], weights[:width].tolist(), strict=True))
                wanted[tuple(context[-order:])] = kept
    assert (table.keys != 0).sum() == len(wanted)
    for gram, successors in wanted.items():
        assert row_of(table, gram) == successors


def test_longer_contexts_keep_fewer_successors():
    table = make_table(64, 12, (1, 2, 3))
    put_successors(
        table, tail_of([4, 5, 6]), np.arange(20, dtype=np.int32), np.linspace(0.2, 0.01, 20, dtype=np.float32)
    )
    assert list(row_of(table, [6])) == list(range(12))
    assert list(row_of(table, [5, 6])) == list(row_of(table, [4, 5, 6])) == list(range(NARROW))
    put_successors(table, tail_of([4, 5, 6]), np.array([9], np.int32), np.ones(1, np.float32))
    assert row_of(table, [6]) == row_of(table, [5, 6]) == row_of(table, [4, 5, 6]) == {9: 1.0}


def test_a_table_never_grows_and_forgets_the_old_first():
    table = make_table(256, 2, (1, 2, 3))
    arrays = list(table)
    text = np.random.default_rng(0).integers(0, 200_000, 5000).astype(np.int32)
    learn_text(table, text, 0)
    assert all(now is before for now, before in zip(table, arrays, strict=True))
    assert len(table.keys) == 256
    assert (table.keys != 0).all()
    found = [row_of(table, text[end - 1 : end].tolist()) is not None for end in range(1, len(text))]
    assert all(found[-4:])  # of the last tokens nothing can have been driven out: a bucket has more places
    assert np.mean(found[-40:]) > 0.9
    assert not any(found[:-400])
    assert sorted(table.slots[:, 0].tolist()) == list(range(256))
    stamps = table.slots[:, 1].reshape(-1, WAYS)
    assert (stamps.min(axis=1) > len(text) - 600).all()
