from hypothesis import given
from hypothesis import strategies as st

from speculators.ngrams.dictionaries import BackwardDictionary, ForwardDictionary

TEXTS = st.lists(st.integers(0, 3), max_size=30)


def test_sequences_come_back_most_recent_first():
    forward = ForwardDictionary(per_key=15, max_keys=100, drop_prefixes=False)
    for sequence in [(1,), (2,), (3,), (1,)]:
        forward.add(9, sequence)
    assert forward[9] == [(1,), (3,), (2,)]
    assert 9 in forward
    assert forward[8] == []


def test_a_full_list_forgets_its_oldest_sequence():
    forward = ForwardDictionary(per_key=3, max_keys=100, drop_prefixes=False)
    for i in range(5):
        forward.add(9, (i,))
    assert forward[9] == [(4,), (3,), (2,)]


def test_a_longer_sequence_replaces_the_one_it_extends():
    forward = ForwardDictionary(per_key=15, max_keys=100, drop_prefixes=True)
    for sequence in [(1,), (1, 2), (1, 2, 3), (1, 4)]:
        forward.add(9, sequence)
    assert forward[9] == [(1, 4), (1, 2, 3)]


@given(st.lists(st.integers(0, 30), max_size=80), st.integers(2, 12))
def test_keys_are_bounded_and_the_recent_half_always_survives(tokens, max_keys):
    forward = ForwardDictionary(per_key=15, max_keys=max_keys, drop_prefixes=False)
    for i, token in enumerate(tokens):
        forward.add(token, (i,))
        assert len(forward) <= max_keys + 1
    recent = list(dict.fromkeys(reversed(tokens)))
    assert all(token in forward for token in recent[: max_keys // 2])


@given(TEXTS, TEXTS, st.integers(1, 4))
def test_learning_text_bit_by_bit_equals_learning_every_window(known, new, longest):
    text = known + new
    quick = BackwardDictionary(1000)
    quick.learn(text, len(known), 1, longest)
    slow = {
        tuple(text[end - n : end]): text[end]
        for end in range(len(known), len(text))
        for n in range(1, longest + 1)
        if end - n >= 0
    }
    assert len(quick) == len(slow)
    assert all(quick.get(key) == token for key, token in slow.items())


@given(st.lists(st.integers(0, 9), max_size=200), st.integers(10, 40))
def test_backward_keys_are_bounded_and_the_last_windows_survive(text, max_keys):
    backward = BackwardDictionary(max_keys)
    backward.learn(text, 0, 1, 4)
    assert len(backward) <= max_keys + 1
    if len(text) > 1:
        assert backward.get((text[-2],)) == text[-1]


def test_the_backward_guess_prefers_longer_keys_and_stops_where_none_hits():
    backward = BackwardDictionary(100)
    backward.add((2,), 7)
    backward.add((1, 2), 3)
    backward.add((3,), 4)
    assert backward.extend([0, 1, 2], longest=4, length=5) == (3, 4)
    assert backward.extend([5, 2], longest=4, length=5) == (7,)
    assert backward.extend([5], longest=4, length=5) == ()
    assert backward.extend([0, 1, 2], longest=4, length=1) == (3,)
