"""Tokenizers of GGUF files split texts as the models' own do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

from app.inputs.tokenizers import load_tokenizer
from engine.model.gguf.tokenizer import SPLITS
from engine.model.loader import load_spec
from engine.model.resolve import resolve
from tests.support.gguf_files import FAMILIES, tokenizer_metadata, write_gguf
from tests.support.tiny_models import TEMPLATE, tiny_tokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "a  12 3456\n\n\n  x\t y",
    "def f(x):\n    return x*2  # it's, I'M\r\n",
    "é ß 日本語 🙂🏽 Ωmega",
    " leading and trailing  ",
    "<|user|>Snow<|end|>",
]
PIECES = ["▁the", "▁quick", "the", "qu", "ck", "ic", "▁t", "he", "▁q", "ui", "▁▁", "▁▁▁"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _converted(tmp_path: Path, changed: dict[str, Any], family: str = "llama") -> Path:
    write_gguf(tmp_path / "model.gguf", family, "Q4_0", changed)
    return resolve(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_byte_level_tokenizer_and_its_template_are_those_of_the_file(family: str, tmp_path: Path) -> None:
    folder = _converted(tmp_path, {}, family)
    ours, original = load_tokenizer(folder), tiny_tokenizer()
    for text in TEXTS:
        assert ours.encode(text) == original.encode(text)
        assert ours.decode(ours.encode(text, add_special_tokens=False)) == text
    assert ours.backend_tokenizer.to_str() == Tokenizer.from_file(str(folder / "tokenizer.json")).to_str()
    assert ours.all_special_tokens == ["<|bos|>", "<|end|>", "<|pad|>"]
    assert (folder / "chat_template.jinja").read_bytes() == TEMPLATE.encode()
    turns = [{"role": "user", "content": "Hello"}]
    assert ours.apply_chat_template(turns, tokenize=False) == original.apply_chat_template(turns, tokenize=False)


def _split(tokenizer: Any, text: str) -> list[str]:
    return [piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", [*SPLITS])
def test_texts_are_split_as_the_file_says(pre: str, tmp_path: Path) -> None:
    ours = load_tokenizer(_converted(tmp_path, {"tokenizer.ggml.pre": pre}))
    if pre in ("gpt-2", "default", "smollm"):
        steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
        steps = [pre_tokenizers.Digits(individual_digits=True), *steps] if pre == "smollm" else steps
        expected = pre_tokenizers.Sequence(steps)
        theirs = lambda text: [piece for piece, _ in expected.pre_tokenize_str(text)]  # noqa: E731
    else:
        loaded = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
        theirs = lambda text: _split(loaded, text)  # noqa: E731
    for text in TEXTS:
        assert _split(ours, text) == theirs(text)


def test_qwen_s_texts_are_normalised_as_its_own_tokenizer_does(tmp_path: Path) -> None:
    ours = load_tokenizer(_converted(tmp_path, {"tokenizer.ggml.pre": "qwen2"}, "qwen2"))
    normalizer = Qwen2Tokenizer().backend_tokenizer.normalizer
    assert ours.backend_tokenizer.normalizer.normalize_str("e\u0301") == normalizer.normalize_str("e\u0301") == "é"


def test_a_digit_of_smollm_stands_alone_and_spaces_before_it_together(tmp_path: Path) -> None:
    ours = load_tokenizer(_converted(tmp_path, {"tokenizer.ggml.pre": "smollm"}))
    assert _split(ours, "a  12") == ["a", "ĠĠ", "1", "2"]  # transformers, which knows no smollm: ["a", "Ġ", "Ġ12"]


@pytest.mark.parametrize(
    ("pre", "flag", "begins"),
    [("gpt-2", None, False), ("llama-bpe", None, True), ("llama-bpe", False, False), ("gpt-2", True, True)],
)
def test_texts_begin_with_bos_if_the_file_or_its_kind_says_so(
    pre: str, flag: bool | None, begins: bool, tmp_path: Path
) -> None:
    changed = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": flag, "tokenizer.ggml.add_eos_token": True}
    ids = load_tokenizer(_converted(tmp_path, changed)).encode("fox")
    assert (ids[0] == 1) == begins
    assert ids[-1] == 2


def test_whole_words_that_are_tokens_are_not_merged(tmp_path: Path) -> None:
    metadata = tokenizer_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"][:-1], "zzz"]
    merges = [merge for merge in metadata["tokenizer.ggml.merges"] if set(merge.split(" ")) < set(tokens)]
    merges = [merge for merge in merges if merge.replace(" ", "") in tokens]
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges, "tokenizer.ggml.pre": "llama-bpe"}
    assert load_tokenizer(_converted(tmp_path, changed)).encode("zzz", add_special_tokens=False) == [len(tokens) - 1]


def test_user_defined_tokens_stay_whole_and_are_decoded(tmp_path: Path) -> None:
    types = tokenizer_metadata()["tokenizer.ggml.token_type"]
    types[300] = 4
    token = tokenizer_metadata()["tokenizer.ggml.tokens"][300]
    ours = load_tokenizer(_converted(tmp_path, {"tokenizer.ggml.token_type": types}))
    assert 300 in ours.encode(f"x{token}x")
    assert ours.decode([300], skip_special_tokens=True) == token
    assert ours.decode([3], skip_special_tokens=True) == ""


def test_texts_end_at_eos_and_at_the_end_of_a_turn(tmp_path: Path) -> None:
    folder = _converted(tmp_path, {"tokenizer.ggml.eot_token_id": 4})
    assert load_spec(folder).eos_ids == (2, 4)
    assert json.loads((folder / "generation_config.json").read_text())["bos_token_id"] == 1


def _sentencepiece(gemma: bool) -> dict[str, Any]:
    """A vocabulary with bytes, characters and a few words, those of high scores first."""
    head = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [*"▁theqickundoxa", *reversed(PIECES)] if gemma else [*PIECES, *"▁theqickundoxa"]
    pieces = [*dict.fromkeys(pieces)]
    tokens = [
        *head,
        *bytes_,
        *(
            [" " * len(piece) if set(piece) == {"▁"} and len(piece) > 1 else piece for piece in pieces]
            if gemma
            else pieces
        ),
    ]
    scores = [0.0] * (len(tokens) - len(pieces)) + [-float(rank) for rank in range(len(pieces))]
    types = [2, 3, 3] + [6] * 256 + [4 if token.strip(" ") == "" else 1 for token in tokens[259:]]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": None,
    }


SPACED = ["the quick  fox", "  the", "thé quick 日本 🙂", "the\nquick", "", "</s>the<s> quick"]


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_sentencepiece_tokenizer_equals_transformers(family: str, tmp_path: Path) -> None:
    ours = load_tokenizer(_converted(tmp_path, _sentencepiece(family != "llama"), family))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in SPACED:
        if family == "llama" and text.startswith((" ", "</s>")):  # where transformers leaves the space out
            continue
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text, add_special_tokens=False)) == text


def test_a_space_precedes_every_text_of_sentencepiece_unless_the_file_says_no(tmp_path: Path) -> None:
    ours = load_tokenizer(_converted(tmp_path, _sentencepiece(False)))
    plain = load_tokenizer(_converted(tmp_path, _sentencepiece(False) | {"tokenizer.ggml.add_space_prefix": False}))
    for text, pieces in (("the", ["▁the"]), (" the", ["▁", "▁the"])):
        assert ours.tokenize(text, add_special_tokens=False) == pieces
    assert plain.tokenize("the", add_special_tokens=False) == ["the"]
    for tokenizer in (ours, plain):
        for text in SPACED[:-1]:  # without special tokens, after which sentencepiece writes a space, too
            assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
