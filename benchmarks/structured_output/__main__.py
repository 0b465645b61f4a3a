"""Texts under JSON schemas: are they valid, are they those of decoding without speculation, and what do they cost?

Schemas are drawn by a seed: nested objects and arrays, enums, references, patterns, strings with characters beyond
ASCII, numbers with bounds. Every schema is one request; each cell (method, temperature, batch size, stages) runs all of
them, compares the texts with those of ``autoregressive`` under the same grammar, and checks what was not cut. Beside it
stands the same without a grammar. Ten minutes; the last line of stdout is one JSON document.

    python -m benchmarks.structured_output [--compact] [--schemas 20] [--temperatures 0 0.8] [--batches 1 8]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import torch

from app.api.requests.structured import StructuredFields
from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.inputs.tokenizers import load_tokenizer
from app.reporting.report import as_line, markdown, number
from engine.events import STOP
from engine.grammar.grammar import Grammar
from engine.loop import Completion, Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target_model.loading import grammars_of
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.grammar import GrammarConfig
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool

PLAIN = "autoregressive"
WORDS = ("name", "größe", "city", "日本", "kind", "price", "émoji 🦊", "id", "notes", "state")


@dataclass(frozen=True, slots=True)
class StructuredOutputCell:
    """All schemas by one method in one setup."""

    method: str
    temperature: float
    batch: int
    stages: int
    grammar: bool
    texts: int
    finished: int  # not cut
    valid: float | None  # of those that were not cut; None without a grammar
    equal: float  # to the texts of plain decoding under the same grammar
    tokens_per_forward: float
    ms_per_token: float


def schema_of(chance: random.Random) -> dict[str, Any]:
    """A schema of an object whose texts end: every string and array has a limit."""
    code = {
        "type": "string",
        "pattern": chance.choice(["^[A-Z]{2}[0-9]{3}$", "^(north|south)-[a-f]+$"]),
        "maxLength": 8,
    }
    fields = {word: _value(chance, 2) for word in chance.sample(WORDS, chance.randint(2, 4))}
    fields["code"] = {"$ref": "#/$defs/code"}
    return {
        "$defs": {"code": code},
        "type": "object",
        "properties": fields,
        "required": [*fields],
        "additionalProperties": False,
    }


def _value(chance: random.Random, depth: int) -> dict[str, Any]:
    low = chance.randint(-50, 50)
    kinds: list[dict[str, Any]] = [
        {"type": "string", "maxLength": chance.randint(3, 12)},
        {"enum": chance.sample([*WORDS, 1, None, True], 3)},
        {"type": "integer", "minimum": low, "maximum": low + chance.randint(1, 500)},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
        {"type": "boolean"},
        {"$ref": "#/$defs/code"},
    ]
    if depth:
        inner = {word: _value(chance, depth - 1) for word in chance.sample(WORDS, 2)}
        kinds.append({"type": "array", "items": _value(chance, depth - 1), "minItems": 1, "maxItems": 3})
        kinds.append(
            {"type": "object", "properties": inner, "required": [*inner], "additionalProperties": False},
        )
    return chance.choice(kinds)


class StructuredOutputBench:
    """Runs cells.

    Args:
        arguments: of the command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        chance = random.Random(arguments.seed)
        self.schemas = [schema_of(chance) for _ in range(arguments.schemas)]
        self.grammars = [self._grammar(schema) for schema in self.schemas]
        self._tokenizer = load_tokenizer(arguments.model)
        turns = [[{"role": "user", "content": f"Write record {i} as JSON."}] for i in range(len(self.schemas))]
        render = self._tokenizer.apply_chat_template
        texts = [str(render(turn, tokenize=False, add_generation_prompt=True)) for turn in turns]
        self._prompts = [self._tokenizer.encode(text, add_special_tokens=False) for text in texts]

    def _grammar(self, schema: dict[str, Any]) -> Grammar:
        form = {"json": schema, "disable_any_whitespace": self._arguments.compact}
        grammar = StructuredFields.model_validate({"structured_outputs": form}).grammar
        assert grammar is not None
        return grammar

    def run(
        self, target: LocalTarget, method: str, temperature: float, batch: int, masked: bool
    ) -> tuple[list[Completion], float]:
        """Completions in the order of the schemas, and seconds."""
        spec, path = target.info.spec, str(self._arguments.model)
        config = GrammarConfig(path, None, tuple(spec.eos_ids), spec.vocab_size)
        engine = Engine(target, SpeculatorPool(SpeculatorOptions(grammar=config)))
        jobs = [
            Request(
                prompt,
                SamplingParams(
                    max_tokens=self._arguments.max_tokens,
                    temperature=temperature,
                    seed=seed,
                    stop_ids=tuple(spec.eos_ids),
                    grammar=grammar if masked else None,
                ),
                method,
            )
            for seed, (prompt, grammar) in enumerate(zip(self._prompts, self.grammars, strict=True))
        ]
        began = time.perf_counter()
        done = dict(engine.run(jobs, batch))
        return [done[i] for i in range(len(jobs))], time.perf_counter() - began

    def is_valid(self, place: int, completion: Completion) -> bool:
        """Whether a text that was not cut fits its schema."""
        text = self._tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        try:
            jsonschema.validate(json.loads(text), self.schemas[place])
        except (ValueError, jsonschema.ValidationError):
            return False
        return True

    def cells(self, target: LocalTarget, temperature: float, batch: int, stages: int) -> list[StructuredOutputCell]:
        """Every method, with the grammar and without."""
        cells: list[StructuredOutputCell] = []
        for masked in (True, False):
            self.run(target, PLAIN, temperature, batch, masked)  # grammars are compiled, pages are touched
            plain, seconds = self.run(target, PLAIN, temperature, batch, masked)
            for method in dict.fromkeys([PLAIN, *self._arguments.methods]):
                done, took = (plain, seconds)
                if method != PLAIN:
                    done, took = self.run(target, method, temperature, batch, masked)
                ended = [i for i, one in enumerate(done) if one.finish_reason == STOP]
                valid = sum(self.is_valid(i, done[i]) for i in ended) if masked else 0
                equal = sum(one.token_ids == other.token_ids for one, other in zip(done, plain, strict=True))
                n_tokens = sum(len(one.token_ids) for one in done)
                forwards = sum(one.stats.target_forwards for one in done)
                cells.append(
                    StructuredOutputCell(
                        method,
                        temperature,
                        batch,
                        stages,
                        masked,
                        len(done),
                        len(ended),
                        valid / max(1, len(ended)) if masked else None,
                        equal / len(done),
                        (n_tokens - len(done)) / max(1, forwards),
                        1e3 * took / n_tokens,
                    )
                )
        return cells

    def mask_seconds(self, target: LocalTarget, completions: Sequence[Completion]) -> float:
        """Seconds that one mask takes on average, over all tokens of texts, and what makes the next one possible."""
        grammars = grammars_of(self._arguments.model, target.info.spec)
        n, seconds = 0, 0.0
        for grammar, completion in zip(self.grammars, completions, strict=True):
            state = grammars.state(grammar)
            began = time.perf_counter()
            for token in completion.token_ids:
                state.words()
                state.advance(token)
            seconds += time.perf_counter() - began
            n += len(completion.token_ids)
        return seconds / n


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=model_path, default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--schemas", type=int, default=20, help="how many are drawn; default: 20")
    parser.add_argument("--seed", type=int, default=0, help="of the schemas; default: 0")
    parser.add_argument(
        "--methods", type=lambda text: text.split(","), default=["grammar", "suffix", "suffix+grammar", "auto"]
    )
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--compact", action="store_true", help="JSON without white space: more is forced")
    parser.add_argument("--threads", type=int, default=1, help="for the arithmetic; default: 1")
    return parser.parse_args()


def main() -> None:
    """Run all cells and print a table."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    bench = StructuredOutputBench(arguments)
    cells: list[StructuredOutputCell] = []
    mask = 0.0
    for stages in arguments.stages:
        target = LocalTarget.load(TargetOptions(str(arguments.model), stages=stages), arguments.model)
        mask = mask or bench.mask_seconds(target, bench.run(target, PLAIN, 0.0, 8, True)[0])
        for temperature in arguments.temperatures:
            for batch in arguments.batches:
                cells += bench.cells(target, temperature, batch, stages)
    body = [[_shown(value) for value in asdict(cell).values()] for cell in cells]
    print(markdown([*asdict(cells[0])], body))
    print(f"one mask takes {1e6 * mask:.0f} us on average")
    print(as_line({"model": str(arguments.model), "mask_us": 1e6 * mask, "cells": [asdict(cell) for cell in cells]}))


def _shown(value: object) -> str:
    return number(value, 3) if value is None or isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
