"""What a grammar's mask takes, by vocabulary: microseconds per token of a text, without a model.

Texts are answers of a chat file. ``json`` holds each as a string in an object under its schema; ``strict auto`` is a
text under the grammar of tools that may be called, of which one is strict: a mask at every token of plain prose.
``thought`` is a text that never ends its thought.

    python -m benchmarks.structured_output.masks --texts F.jsonl [--model DIR ...] [--vocabulary N ...]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from app.api.tools.families import FAMILIES
from app.api.tools.grammar import CallGrammars
from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.inputs.tokenizers import load_tokenizer
from app.reporting.report import as_line, markdown
from engine.grammar.compiler import Grammars
from engine.grammar.grammar import Grammar, Thought

OBJECT = {
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 0}, "answer": {"type": "string"}},
    "required": ["id", "answer"],
    "additionalProperties": False,
}
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
END, LONGEST = "<|end|>", 64  # of a tokenizer that is learnt: its end, and characters of a token
COLUMNS = ["vocabulary", "grammar", "tokens", "first, ms", "median, us", "mean, us", "99 %, us"]


def grammars() -> dict[str, Grammar]:
    """Those that are measured, by name."""
    from llguidance import LLMatcher

    calls = CallGrammars(FAMILIES["hermes"], [("weather", WEATHER), ("search", None)], True)
    return {
        "json": Grammar(LLMatcher.grammar_from_json_schema(OBJECT)),
        "strict auto": Grammar(LLMatcher.grammar_from_lark(calls.allowed())),
        "thought": Grammar(LLMatcher.grammar_from_json_schema(OBJECT), thought=Thought("</think>")),
    }


def answers(path: Path) -> list[str]:
    """All answers of a file with a conversation per line."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line)["messages"][1]["content"] for line in file]


def trained(texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of at most ``size`` tokens, learnt from texts."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            show_progress=False,
            vocab_size=size,
            special_tokens=[END],
            initial_alphabet=alphabet,
            max_token_length=LONGEST,
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)


def row(tokenizer: PreTrainedTokenizerFast, name: str, grammar: Grammar, texts: Sequence[str]) -> dict[str, object]:
    """Masks along all texts; the first one of a grammar is apart, for it compiles."""
    size = len(tokenizer)
    compiled = Grammars(tokenizer.backend_tokenizer.to_str, [tokenizer.eos_token_id], size)
    began = time.perf_counter()
    compiled.state(grammar).words()
    first, took = time.perf_counter() - began, list[float]()
    for i, text in enumerate(texts):
        written = json.dumps({"id": i, "answer": text}, ensure_ascii=False) if name == "json" else text
        state = compiled.state(grammar)
        for token in tokenizer.encode(written, add_special_tokens=False):
            began = time.perf_counter()
            state.words()
            state.advance(token)
            took.append(1e6 * (time.perf_counter() - began))
        assert not state.error, (state.error, written[:200])
    figures = (len(took), 1e3 * first, np.median(took), np.mean(took), np.percentile(took, 99))
    return dict(zip(COLUMNS, (size, name, *(round(float(figure), 1) for figure in figures)), strict=True))


def main() -> None:
    """Print a table, and one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, metavar="F.jsonl", help="conversations, one per line")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="texts (default: 50)")
    parser.add_argument("--model", type=model_path, nargs="+", help=f"with a tokenizer (default: {DEFAULT_MODEL})")
    parser.add_argument(
        "--vocabulary",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        help="and tokenizers of at most N tokens, learnt from all texts",
    )
    arguments = parser.parse_args()
    every = answers(arguments.texts)
    tokenizers = [load_tokenizer(model) for model in arguments.model or [model_path(DEFAULT_MODEL)]]
    tokenizers += [trained(every, size) for size in arguments.vocabulary]
    texts, forms = every[: arguments.limit], grammars()
    rows = [row(tokenizer, name, grammar, texts) for tokenizer in tokenizers for name, grammar in forms.items()]
    print(markdown(COLUMNS, [[str(value) for value in found.values()] for found in rows]))
    print(as_line({"rows": rows}))


if __name__ == "__main__":
    main()
