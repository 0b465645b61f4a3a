"""Masks depend on the path alone; compiled grammars are kept up to a limit; errors give their reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from engine.grammar import compiler
from engine.grammar.compiler import Grammars
from engine.grammar.grammar import Grammar, GrammarError, Thought
from engine.grammar.words import forbidden, has, words_of
from engine.tree import ROOT, TokenTree
from tests.support.grammars import PERSON, letters, of_lark, of_regex, of_schema, tiny_grammars
from tests.support.tiny_models import tiny_tokenizer

GRAMMARS = tiny_grammars()
TEXTS = (
    "[a{]]{}",
    '{"name":"ab","kind":"town","age":7}',
    '{ "name": "x", "kind": "lazy dog",\n "age": 99}',
    '{"age',
    "{}",
    "[1]",
)
EOS = 2


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Trees of tokens from texts that fit or not, of ends, and of other tokens."""
    n = draw(st.integers(0, 12))
    encoded = [tiny_tokenizer().encode(text, add_special_tokens=False) for text in TEXTS]
    tokens, parents = list[int](), list[int]()
    for node in range(n):
        parents.append(draw(st.integers(ROOT, node - 1)))
        depth, above = 0, parents[-1]
        while above != ROOT:
            depth, above = depth + 1, parents[above]
        text = draw(st.sampled_from(encoded))
        tokens.append(draw(st.sampled_from([text[min(depth, len(text) - 1)], EOS, 40])))
    return TokenTree(tokens, parents)


@given(
    trees(),
    st.sampled_from(
        [
            of_schema(PERSON),
            of_regex(r'\{ ?"[a-z]+.*'),
            Grammar(of_lark('start: "{" /.*/ "}"?').source, of_schema(PERSON).source),
            Grammar(of_schema(PERSON).source, of_regex(r"\{.*").source, Thought("]]", "[")),
        ]
    ),
)
def test_every_node_has_the_mask_of_its_own_path(tree: TokenTree, grammar: Grammar) -> None:
    state = GRAMMARS.state(grammar)
    found = state.rows(tree, len(tree))
    for node in range(len(tree)):
        path = [tree.tokens[above] for above in tree.path(node)]
        alone = GRAMMARS.state(grammar, path[:-1])
        allowed = not alone.error and not alone.is_ended and has(alone.words(), path[-1])
        assert (node in found) == allowed
        if allowed:
            alone.advance(path[-1])
            assert np.array_equal(found[node][0], alone.words())
    assert np.array_equal(state.words(), GRAMMARS.state(grammar).words())  # unchanged


def test_only_an_end_follows_an_end_or_an_error() -> None:
    state = GRAMMARS.state(of_regex("a+"), tiny_tokenizer().encode("aa", add_special_tokens=False))
    assert has(state.words(), EOS)
    state.advance(EOS)
    for _ in range(2):
        assert np.flatnonzero(~forbidden(state.words(), len(tiny_tokenizer()))).tolist() == [EOS]
        state.advance(40)
    assert not state.error
    wrong = GRAMMARS.state(of_regex("a+"), [40])
    assert "cannot follow" in wrong.error
    assert np.array_equal(wrong.words(), words_of([EOS], len(tiny_tokenizer())))


def test_forced_tokens_end_where_there_is_a_choice() -> None:
    state = GRAMMARS.state(of_schema(PERSON, whitespace=False))
    assert tiny_tokenizer().decode(state.forced()) == '{"name":"'
    state.advance(state.forced()[0])
    assert tiny_tokenizer().decode(state.forced()) == '"name":"'
    for token in state.forced():
        state.advance(token)
    assert state.forced() == []


REFUSED = [
    (of_schema({"type": "integer", "minimum": 5, "maximum": 3}), "Unsatisfiable"),
    (of_schema({"allOf": [{"type": "string"}, {"type": "number"}]}), "Unsatisfiable"),
    (of_schema({"enum": []}), "Unsatisfiable"),
    (of_schema({"$ref": "#"}), ""),
    (of_schema({"type": "wrong"}), "Invalid type"),
    (of_schema({"allOf": [{"anyOf": [{"properties": {f"{i}{j}": {}}} for j in range(4)]} for i in range(9)]}), "too"),
    (of_regex("(a"), "regex"),
    (of_regex("(?=a)b"), "look-around"),
    (of_lark("start: nothing"), "unknown name"),
    (of_regex("a" * 70_000), "at most 65536"),
]


@pytest.mark.parametrize(("grammar", "reason"), REFUSED)
def test_a_grammar_without_texts_is_refused_with_the_reason(grammar: Grammar, reason: str) -> None:
    with pytest.raises(GrammarError) as caught:
        GRAMMARS.prepare(grammar).result()
    assert reason in str(caught.value)
    assert str(caught.value)
    assert GRAMMARS.state(grammar).error == str(caught.value)


def test_a_grammar_whose_work_grows_without_bound_ends_in_an_error() -> None:
    state = GRAMMARS.state(of_lark('start: start start | "a"'))
    (letter,) = tiny_tokenizer().encode("a", add_special_tokens=False)
    for _ in range(4000):
        if state.error:
            break
        state.words()
        state.advance(letter)
    assert state.error
    assert np.array_equal(state.words(), words_of([EOS], len(tiny_tokenizer())))


MARK = "<tool_call>"


def bytewise() -> Tokenizer:
    copy: Tokenizer = Tokenizer.from_str(tiny_tokenizer().backend_tokenizer.to_str())
    return copy


def unigram() -> Tokenizer:
    """Pieces are letters, and the mark is in the model's list, as in SentencePiece checkpoints."""
    pieces = [("<unk>", 0.0), ("<pad>", 0.0), ("<end>", 0.0), (MARK, 0.0), *((c, -2.0) for c in {*MARK, *"wet"})]
    made = Tokenizer(models.Unigram(pieces, unk_id=0))
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<unk>", "<pad>", "<end>"])
    return made


def with_token(tokenizer: Tokenizer, content: str, is_special: bool = False) -> Grammars:
    tokenizer.add_tokens([AddedToken(content, special=is_special, normalized=False)])
    return Grammars(tokenizer.to_str, (EOS,), tokenizer.get_vocab_size())


@pytest.mark.parametrize(("tokenizer", "is_special"), [(bytewise(), True), (bytewise(), False), (unigram(), True)])
def test_the_text_of_an_added_token_can_be_spelled_and_the_token_can_be_named(
    tokenizer: Tokenizer, is_special: bool
) -> None:
    grammars = with_token(tokenizer, MARK, is_special)
    mark, size = tokenizer.token_to_id(MARK), tokenizer.get_vocab_size()
    spelled = [tokenizer.encode(c, add_special_tokens=False).ids[0] for c in MARK]
    for tokens, grammar in (
        (spelled, of_lark(f'start: "{MARK}" "wet"')),
        ([mark], of_lark(f'start: <[{mark}]> "wet"')),
    ):
        state = grammars.state(grammar)
        drafts = state.forced()
        while not has(state.words(), EOS):
            token = drafts.pop(0) if drafts else int(np.flatnonzero(~forbidden(state.words(), size))[0])
            state.advance(token)
            assert not state.error
        state = grammars.state(grammar, tokens)  # in the smallest pieces
        assert not state.error
        assert not has(state.words(), EOS)


def test_compiled_grammars_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "MOST_KEPT", 2)
    grammars = letters()
    a, b, c = (of_regex(letter) for letter in "abc")
    first = grammars.prepare(a)
    assert grammars.prepare(Grammar(a.source)) is first  # by content
    grammars.prepare(b)
    grammars.prepare(a)
    grammars.prepare(c)  # evicts b
    assert grammars.prepare(a) is first
    kept = [grammars.prepare(grammar) for grammar in (c, b)]
    assert all(made.result() for made in kept)
    assert grammars.prepare(a) is not first


def test_a_tokenizer_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    endless = Grammars(lambda: json.dumps({}), (), 5)
    assert "no token that ends" in endless.state(of_regex("a")).error
    missing = Grammars((tmp_path / "tokenizer.json").read_text, (1,), 5)
    assert "tokenizer" in missing.state(of_regex("a")).error
    for length in (513, 5000):  # llguidance panics at 5,000
        long = with_token(bytewise(), "a" * length)
        assert f"has {length} characters; at most 512" in long.state(of_regex("a+")).error
