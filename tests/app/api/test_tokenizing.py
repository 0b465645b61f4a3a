"""A text is refused for its length only if no tokenization of it can fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from app.api.requests.tokenizing import TextEncoder, most_characters_per_token
from engine.errors import PromptTooLongError
from tests.support.tiny_models import tiny_tokenizer

COMPOSED = ["ᾂ", "α\u0313\u0300\u0345", "e\u0301", "ﷺ", "각", "각", "İ", "ﬃ"]


def byte_level() -> Tokenizer:
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for a, b in (("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("a", "b")):
        vocabulary[a + b] = len(vocabulary)
    merges = [("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("a", "b")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    split = pre_tokenizers.Split(Regex(r"\s+|\w+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return tokenizer


def with_normalizer(normalizer: normalizers.Normalizer) -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizer
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2's."""
    words = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "▁▁", "x", "日"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={w: i for i, w in enumerate(words)}, merges=[("▁", "▁")], unk_token="<unk>", byte_fallback=True
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


BOUNDED = {
    "trained": tiny_tokenizer().backend_tokenizer,
    "byte level": byte_level(),
    "composing": with_normalizer(normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])),
    "byte fallback": byte_fallback(),
}
MOST = {name: most_characters_per_token(tokenizer) for name, tokenizer in BOUNDED.items()}


@given(
    text=st.text(max_size=60)
    | st.lists(st.sampled_from([*COMPOSED, "    ", "ab", "<|end|>"]), max_size=20).map("".join)
)
@pytest.mark.parametrize("name", BOUNDED)
def test_no_text_has_more_characters_per_token_than_the_bound(name: str, text: str) -> None:
    most = MOST[name]
    assert most is not None
    assert len(text) <= most * len(BOUNDED[name].encode(text, add_special_tokens=False).ids)


def with_greedy_token() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("<|end|>", rstrip=True)])
    return tokenizer


UNBOUNDED: dict[str, tuple[Tokenizer, str]] = {  # a tokenizer, and a long text of few tokens
    "strips": (with_normalizer(normalizers.Strip()), "a" + " " * 99),
    "a token takes spaces": (with_greedy_token(), "<|end|>" + " " * 99),
    "unknown letters": (Tokenizer(models.BPE(vocab={"ab": 0, "a": 1, "b": 2}, merges=[("a", "b")])), "c" * 99),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_a_tokenizer_that_drops_text_has_no_bound(name: str) -> None:
    tokenizer, text = UNBOUNDED[name]
    assert len(tokenizer.encode(text).ids) < 40
    assert most_characters_per_token(tokenizer) is None
    encoder = TextEncoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert encoder.encode(text, "prompt", 2, add_special_tokens=False) == tokenizer.encode(text).ids


def test_only_a_text_that_cannot_fit_is_refused() -> None:
    tokenizer = byte_level()
    encoder = TextEncoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert encoder.encode(" " * 40, "prompt", 10, add_special_tokens=False) == [tokenizer.token_to_id("ĠĠĠĠ")] * 10
    with pytest.raises(PromptTooLongError, match="no text of more than 40 characters"):
        encoder.encode(" " * 41, "prompt", 10, add_special_tokens=False)
