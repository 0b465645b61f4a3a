"""Builds tokenizer.json and tokenizer_config.json from the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from engine.model.families import GGUF_FAMILIES
from engine.model.gguf.header import GgufHeader
from engine.model.gguf.metadata import GgufMetadata

BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"  # of tokenizer.ggml.model
MODELS = (BYTE_LEVEL, SENTENCEPIECE)

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = ""  # ByteLevel's own
SPLITS = {  # tokenizer.ggml.pre -> the pattern that splits texts before merges
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": _GPT2,  # each digit is a piece of its own
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}
_WHOLE = {_LLAMA3, _TEKKEN}  # words that are tokens are not merged, and texts begin with BOS
_CONTROL, _USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type
_SPACE = "▁"
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def build_tokenizer(header: GgufHeader) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer, and the contents of tokenizer_config.json.

    Raises:
        UnsupportedModelError: the file has no tokenizer, or one that is not supported.
    """
    data = GgufMetadata(header)
    kind = data.text("tokenizer.ggml.model", "")
    if kind not in MODELS:
        raise data.refusal(f"tokenizer.ggml.model is {kind!r}; supported are {' and '.join(MODELS)}")
    tokens = data.strings("tokenizer.ggml.tokens")
    if len(set(tokens)) < len(tokens):
        raise data.refusal("tokenizer.ggml.tokens has one token twice")
    special = {name: _token(data, tokens, key) for name, key in _SPECIAL.items()}
    _token(data, tokens, "eot")  # checks the id that ``end_ids`` returns
    if kind == BYTE_LEVEL:
        tokenizer, adds_bos = _byte_level(data, tokens)
    else:
        tokenizer, adds_bos = _sentencepiece(data, tokens, special["unk_token"]), True
    _add_tokens(tokenizer, data, tokens)
    ends = [
        token
        for name, key, default in (("bos_token", "add_bos_token", adds_bos), ("eos_token", "add_eos_token", False))
        if data.flag(f"tokenizer.ggml.{key}", default) and (token := special[name]) is not None
    ]
    _add_ends(tokenizer, special, ends)
    config = {name: token for name, token in special.items() if token is not None}
    return tokenizer, config | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": data.integer(".context_length"),
    }


def end_ids(header: GgufHeader) -> list[int]:
    """Return the ids that end a text: EOS, and the end of a turn if the file names one."""
    data = GgufMetadata(header)
    ids = {data.integer(f"tokenizer.ggml.{key}_token_id", None) for key in ("eos", "eot")}
    return sorted(ids - {None})


def _token(data: GgufMetadata, tokens: list[str], key: str) -> str | None:
    name = f"tokenizer.ggml.{key}_token_id"
    index = data.integer(name, None)
    if index is None:
        return None
    if not 0 <= index < len(tokens):
        raise data.refusal(f"{name} is {index}, but the vocabulary has {len(tokens)} tokens")
    token: str = tokens[index]
    return token


def _byte_level(data: GgufMetadata, tokens: list[str]) -> tuple[Tokenizer, bool]:
    """Return byte-level BPE, and whether texts begin with BOS by default."""
    pre = data.text("tokenizer.ggml.pre", "default")
    if pre not in SPLITS:
        raise data.refusal(f"tokenizer.ggml.pre is {pre!r}; supported are {', '.join(SPLITS)}")
    merges = [tuple(merge.split(" ")) for merge in data.strings("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pattern = SPLITS[pre]
    tokenizer = Tokenizer(_bpe(data, vocabulary, merges, ignore_merges=pattern in _WHOLE))
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == _GPT2)]
    if pre == "smollm":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if pattern == _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    if pattern != _GPT2:
        steps.insert(0, pre_tokenizers.Split(Regex(pattern), behavior="isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pattern in _WHOLE


def _sentencepiece(data: GgufMetadata, tokens: list[str], unknown: str | None) -> Tokenizer:
    """Return BPE of a sentencepiece model, whose merges follow from the scores or the order of its tokens."""
    has_order = GGUF_FAMILIES[data.architecture].gguf.scores_by_order
    if has_order:
        tokens = [_SPACE * len(token) if token.strip(" ") == "" else token for token in tokens]
        scores = [float(-index) for index in range(len(tokens))]
    else:
        scores = data.numbers("tokenizer.ggml.scores", len(tokens))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = _merges(vocabulary, scores)
    tokenizer = Tokenizer(_bpe(data, vocabulary, merges, unk_token=unknown, byte_fallback=True, fuse_unk=True))
    prefixed = data.flag("tokenizer.ggml.add_space_prefix", not has_order)
    to_spaces: list[Any] = [normalizers.Replace(" ", _SPACE)]
    from_spaces: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefixed:
        to_spaces.insert(0, normalizers.Prepend(_SPACE))
        from_spaces.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(to_spaces)
    tokenizer.decoder = decoders.Sequence(from_spaces)
    return tokenizer


def _merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Return every cut of a token into two tokens, high scores first."""
    found = []
    for token, index in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-scores[index], vocabulary[left], vocabulary[right], (left, right)))
    return [merge for *_, merge in sorted(found)]


def _bpe(data: GgufMetadata, vocabulary: dict[str, int], merges: list[Any], **settings: Any) -> models.BPE:
    try:
        return models.BPE(vocab=vocabulary, merges=merges, **settings)
    except Exception as error:  # the library raises no other class
        raise data.refusal(f"tokenizer.ggml.merges do not fit the vocabulary: {error}") from error


def _add_tokens(tokenizer: Tokenizer, data: GgufMetadata, tokens: list[str]) -> None:
    """Add tokens that are never split: control tokens, which are special, and user-defined ones."""
    if "tokenizer.ggml.token_type" not in data:
        return
    types = data.numbers("tokenizer.ggml.token_type", len(tokens))
    known = [
        (token, kind) for token, kind in zip(tokens, types, strict=True) if tokenizer.token_to_id(token) is not None
    ]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token, kind in known if kind == _CONTROL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token, kind in known if kind == _USER_DEFINED])


def _add_ends(tokenizer: Tokenizer, special: dict[str, str | None], ends: list[str]) -> None:
    """Let every text begin with BOS and end with EOS if these are among ``ends``."""
    first = [token for token in ends if token == special["bos_token"]][:1]
    last = [token for token in ends if token == special["eos_token"] and token not in first]
    if ends:
        known = [(token, tokenizer.token_to_id(token)) for token in {*first, *last}]
        single = " ".join([*first, "$A", *last])
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=known)
