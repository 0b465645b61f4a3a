"""A thought is free and ends at its marker, however tokens cut it; then the answer satisfies one of its grammars."""

from __future__ import annotations

import re
from itertools import product

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer

from engine.grammar.compiler import Grammars
from engine.grammar.grammar import Grammar, GrammarError, Thought
from engine.grammar.state import GrammarState
from engine.grammar.words import has
from tests.support.grammars import PERSON, letters, of_regex, of_schema, tiny_grammars
from tests.support.tiny_models import tiny_tokenizer

EOS = 2
THINK = Thought("</think>", "<think>")
INSIDE = Thought("</think>")
ANSWER = '{"name":"ab","kind":"town","age":7}'
PERSONS = of_schema(PERSON, whitespace=False)


def thinking(grammar: Grammar, thought: Thought) -> Grammar:
    return msgspec.structs.replace(grammar, thought=thought)


def take(state: GrammarState, tokens: list[int]) -> int:
    """How many of the tokens are allowed, one after another."""
    for n, token in enumerate(tokens):
        if not has(state.words(), token):
            return n
        state.advance(token)
        assert not state.error
    return len(tokens)


def vocabulary(*added: str, special: bool = False) -> tuple[Tokenizer, Grammars]:
    """The tiny vocabulary of bytes and short pieces, with more tokens."""
    made = Tokenizer.from_str(tiny_tokenizer().backend_tokenizer.to_str())
    made.add_tokens([AddedToken(text, special=special, normalized=False) for text in added])
    return made, Grammars(made.to_str, (EOS,), made.get_vocab_size())


@pytest.mark.parametrize(
    ("added", "special"),
    [((), False), (("</think>", "<think>"), True), (("</think>",), False), (("ink>\n", "</th"), False)],
    ids=["spelled", "special tokens", "a token", "tokens that span it"],
)
@pytest.mark.parametrize("breaks", ["", "\n", "\n\n"])
def test_the_grammar_holds_after_the_marker_however_tokens_cut_it(
    added: tuple[str, ...], special: bool, breaks: str
) -> None:
    tokenizer, grammars = vocabulary(*added, special=special)
    thought = f'So <think, </thin> and {{"name":1}}.</think>{breaks}'
    for text, kind in ((thought + ANSWER, INSIDE), ("<think>" + thought + ANSWER, THINK), (ANSWER, THINK)):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        state = grammars.state(thinking(PERSONS, kind))
        assert take(state, ids[:-1]) == len(ids) - 1, text
        assert not has(state.words(), EOS)
        assert take(state, [ids[-1], EOS]) == 2
    (other,) = tokenizer.encode("[", add_special_tokens=False).ids
    for text, is_free in ((thought[:8], True), (thought, False), (thought + '{"', False)):
        state = grammars.state(thinking(PERSONS, INSIDE), tokenizer.encode(text, add_special_tokens=False).ids)
        assert has(state.words(), other) is is_free
        assert not has(state.words(), EOS)


def test_a_token_that_ends_the_thought_and_begins_the_answer_is_not_allowed() -> None:
    tokenizer, grammars = vocabulary('>{"', ">\n\n", ">\n\n\n")
    spans, ends, too_long = (tokenizer.token_to_id(text) for text in ('>{"', ">\n\n", ">\n\n\n"))
    state = grammars.state(thinking(PERSONS, INSIDE))
    assert all(has(state.words(), token) for token in (spans, ends, too_long))
    take(state, tokenizer.encode("</think", add_special_tokens=False).ids)
    assert [has(state.words(), token) for token in (spans, ends, too_long)] == [False, True, False]
    state.advance(ends)
    (line_break,) = tokenizer.encode("\n", add_special_tokens=False).ids
    assert not has(state.words(), line_break)
    assert take(state, tokenizer.encode(ANSWER, add_special_tokens=False).ids) > 10


CASES = [
    (Grammar(of_regex("ab*").source, of_regex("abc+|d").source), None),
    (Grammar(of_regex("(a|c)*b").source, of_regex("[abcd]{4}").source), Thought("aba")),
    (of_regex("d|c+|ab"), Thought("ab", "cc")),
    (Grammar(of_regex("cd*").source, of_regex("cccd").source), Thought("dd", "ccc")),
]
PATTERNS = [("ab*", "abc+|d"), ("(a|c)*b", "[abcd]{4}"), ("d|c+|ab",), ("cd*", "cccd")]


def is_answer(text: str, thought: Thought | None, patterns: tuple[str, ...]) -> bool:
    if thought is not None and text.startswith(thought.opening):
        _, found, text = text[len(thought.opening) :].partition(thought.closing)
        if not found:
            return False
    return any(re.fullmatch(pattern, text) for pattern in patterns)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_every_short_text_is_allowed_if_and_only_if_it_is_an_answer(case: int) -> None:
    grammar, thought = CASES[case]
    grammars = letters(4)
    made = msgspec.structs.replace(grammar, thought=thought)
    n_answers = 0
    for size in range(6):
        for tokens in product(range(4), repeat=size):
            text = "".join("abcd"[token] for token in tokens)
            expected = is_answer(text, thought, PATTERNS[case])
            assert (take(grammars.state(made), [*tokens, 4]) == size + 1) is expected, text
            n_answers += expected
    assert n_answers > 3


def test_forced_tokens_are_those_of_the_one_grammar_left() -> None:
    grammars, ids = tiny_grammars(), tiny_tokenizer().encode
    made = Grammar(PERSONS.source, of_regex("call: now").source, THINK)
    state = grammars.state(made)
    assert state.forced() == []
    for text, forced in (("<think>", ""), ("c</think>", ""), ("\n\n", ""), ("c", "all: now")):
        take(state, ids(text, add_special_tokens=False))
        assert tiny_tokenizer().decode(state.forced()) == forced


def test_an_error_says_which_source_fails() -> None:
    grammars = tiny_grammars()
    for made, is_other in ((Grammar("start: x", PERSONS.source), False), (Grammar(PERSONS.source, "start: x"), True)):
        with pytest.raises(GrammarError, match="unknown name") as caught:
            grammars.prepare(made).result()
        assert caught.value.is_other is is_other
    assert len({made.digest for made in (PERSONS, thinking(PERSONS, THINK), Grammar(PERSONS.source, "start: x"))}) == 3
