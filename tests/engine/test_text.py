"""Incremental text equals the text of all tokens, whatever the tokenizer and however the tokens arrive."""

from __future__ import annotations

import itertools
import random
import sys
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.text import CONTEXT, WINDOW, Detokenizer, StopMatcher


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def byte_level() -> PreTrainedTokenizerFast:
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("Ġ", "w"), ("Ġ", "ð"), ("æ", "Ĺ"), ("Ġ", "Ġ"), ("l", "l")]
    for a, b in merges:
        vocabulary[a + b] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return wrap(tokenizer)


def byte_fallback() -> PreTrainedTokenizerFast:
    """Llama 2's decoder: spaces as ▁, unknown characters as byte tokens, one leading space dropped."""
    words = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "▁▁", "▁Hello", "▁world", "x", ".", "日", "\ufffd"]
    tokenizer = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[], unk_token="<unk>"))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return wrap(tokenizer)


def metaspace() -> PreTrainedTokenizerFast:
    words = ["<unk>", "▁", "▁▁", "▁Hello", "▁world", "x", ".", "日本", "👩"]
    tokenizer = Tokenizer(models.WordLevel(vocab={w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return wrap(tokenizer)


def byte_ids(data: bytes) -> list[int]:
    """A token of the byte-level vocabulary for each byte."""
    own, others = {*range(33, 127), *range(161, 173), *range(174, 256)}, itertools.count(256)
    names = [chr(byte if byte in own else next(others)) for byte in range(256)]
    return [TOKENIZERS["byte_level"].convert_tokens_to_ids(names[byte]) for byte in data]


TOKENIZERS = {"byte_level": byte_level(), "byte_fallback": byte_fallback(), "metaspace": metaspace()}


def stream(tokenizer: PreTrainedTokenizerFast, ids: list[int], rng: random.Random, skip: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip)
    out, start = [], 0
    while start < len(ids):
        size = rng.randint(1, 5)
        out.append(detokenizer.push(ids[start : start + size]))
        start += size
    return [*out, detokenizer.flush()]


class Counting(Detokenizer):
    """Counts the ids that it decodes."""

    n_decoded = 0

    def _decode(self, ids: list[int]) -> str:
        self.n_decoded += len(ids)
        return super()._decode(ids)


def whole(tokenizer: PreTrainedTokenizerFast, ids: list[int], skip: bool) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))


@pytest.mark.parametrize(("name", "skip"), [("byte_level", True), ("byte_fallback", False), ("metaspace", True)])
def test_pieces_of_random_ids_join_to_the_whole_text(name: str, skip: bool) -> None:
    tokenizer = TOKENIZERS[name]
    rng = random.Random(name)
    for _ in range(150):
        ids = [rng.randrange(len(tokenizer)) for _ in range(rng.randint(1, 60))]
        assert "".join(stream(tokenizer, ids, rng, skip)) == whole(tokenizer, ids, skip)


PADDING = 7  # beyond the tokenizer's ids: models pad their vocabulary
LONE = [b"\xe2", b"\x82", b"\xe2\x82", b"\xf0\x9f", b"\xf0\x9f\x91", b"\x80\xe2\x82", b"\x8d\xf0\x9f\x91", b"\xff"]
BYTES = st.sampled_from([*LONE, "é".encode(), "€".encode(), "👍".encode(), "\ufffd".encode(), b"a", b" "])


@given(
    runs=st.lists(st.tuples(st.lists(BYTES, min_size=1, max_size=4), st.integers(1, 30)), min_size=1, max_size=6),
    others=st.lists(st.tuples(st.integers(0, 200), st.sampled_from(["<|end|>", None])), max_size=4),
    seed=st.integers(0, 2**16),
    skip=st.booleans(),
)
def test_pieces_of_incomplete_characters_join_to_the_whole_text(
    runs: list[tuple[list[bytes], int]], others: list[tuple[int, str | None]], seed: int, skip: bool
) -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = byte_ids(b"".join(b"".join(parts) * n for parts, n in runs))
    for place, token in others:  # a special token, or padding of the model's vocabulary
        ids.insert(place, len(tokenizer) + PADDING if token is None else tokenizer.convert_tokens_to_ids(token))
    assert "".join(stream(tokenizer, ids, random.Random(seed), skip)) == whole(tokenizer, ids, skip)


ENDLESS = {
    "the first byte of a character": ("byte_level", byte_ids(b"\xe2")),
    "a byte from within one": ("byte_level", byte_ids(b"\x82")),
    "characters that every push leaves open": ("byte_level", byte_ids(b"\x8d\xf0\x9f\x91")),
    "marks": ("byte_fallback", TOKENIZERS["byte_fallback"].convert_tokens_to_ids(["\ufffd"])),
    "spaces": ("byte_fallback", TOKENIZERS["byte_fallback"].convert_tokens_to_ids(["▁"])),
    "spaces of words": ("metaspace", TOKENIZERS["metaspace"].convert_tokens_to_ids(["▁"])),
    "padding": ("byte_level", [len(TOKENIZERS["byte_level"]) + PADDING]),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_each_push_decodes_a_bounded_number_of_tokens(kind: str) -> None:
    name, ids = ENDLESS[kind]
    detokenizer, n = Counting(TOKENIZERS[name]), 200
    text = "".join(detokenizer.push(ids) for _ in range(n)) + detokenizer.flush()
    assert text == whole(TOKENIZERS[name], ids * n, True)
    assert detokenizer.n_decoded <= n * (WINDOW + len(ids) + CONTEXT)


def test_text_is_returned_with_the_token_that_completes_it() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push([i]) for i in tokenizer.encode("a日!", add_special_tokens=False)]
    assert [piece for piece in pieces if piece] == ["a", "日", "!"]
    assert (pieces[-1], detokenizer.flush()) == ("!", "")
    incomplete = tokenizer.encode("ok👍", add_special_tokens=False)[:-1]
    assert detokenizer.push(incomplete) == "ok"
    assert detokenizer.flush() == whole(tokenizer, incomplete, True)[2:], "a replacement mark"


def reference_match(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first match, found by growing the text one character at a time."""
    for end in range(1, len(text) + 1):
        hits = [s for s in stops if text[:end].endswith(s)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    text=st.text(alphabet="ab\n", max_size=40) | st.text(alphabet="ab", min_size=40, max_size=160),
    stops=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=6), min_size=1, max_size=4)
    | st.lists(st.text(alphabet="ab", min_size=4, max_size=12), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 5), min_size=1, max_size=40),
)
def test_stop_strings_do_not_depend_on_how_the_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher, out, start = StopMatcher(stops), "", 0
    for size in cuts * 160:
        out += matcher.push(text[start : start + size])
        assert not any(s in out for s in stops)
        start += size
        if start >= len(text):
            break
    assert (out + matcher.flush(), matcher.matched) == reference_match(text, stops)


def test_a_stop_string_across_tokens_counts_the_tokens_up_to_it() -> None:
    matcher = StopMatcher(["</s>", "STOP"])
    pieces = [matcher.push(piece) for piece in ["a <", "/", "b ST", "O", "P more", "even more"]]
    assert "".join(pieces) == "a </b "
    assert pieces[0] == "a "  # a possible beginning is held back
    assert (matcher.matched, matcher.tokens, matcher.flush()) == ("STOP", 5, "")
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["x", ""])


def test_adversarial_stop_strings_take_constant_work_per_character() -> None:
    size, n_tokens, n_opcodes = 256, 200, 0
    matcher = StopMatcher([*("a" * (size - i) + "b" + "a" * size for i in range(15)), "a" * (2 * size) + "b"])

    def trace(frame: FrameType, event: str, argument: object) -> object:
        nonlocal n_opcodes
        frame.f_trace_opcodes = True
        n_opcodes += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for _ in range(n_tokens):
            matcher.push("aaaa")
    finally:
        sys.settrace(before)
    assert matcher.matched is None
    assert n_opcodes < 150 * 16 * 4 * n_tokens
