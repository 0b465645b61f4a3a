"""Induction heads of a target: from a file, from the cache, or found now; and what PLD+ has to know of the model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.inputs.prompts import Conversation, Question, encode_chat, encode_raw
from app.inputs.tokenizers import load_tokenizer
from app.reporting.report import bar
from app.speculation.calibration_prompts import PROMPTS
from engine.errors import ConfigError
from engine.kept_files import cache_folder
from engine.loop import Engine
from engine.model.identity import model_hash
from engine.model.spec import ModelSpec
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.local import LocalTarget
from speculators.pld_plus.induction_heads import HeadCounter, Heads, HeadsFile, best_heads, read_heads, write_heads
from speculators.pld_plus.speculator import paper_layer
from speculators.pool import SpeculatorPool

if TYPE_CHECKING:
    from speculators.method import SpeculatorOptions

METHOD = "pld-plus-a"  # the one that needs heads
KEEP = 50  # heads at most: the published number, of a model with 1024
SHARE = 6  # and at most one in so many: in a small model the rest would only add noise
MAX_NEW_TOKENS = 64  # per prompt
TEMPERATURE = 0.8  # a small model's greedy text repeats itself, and would be all that is counted

Prompts = Sequence[Sequence[int]]


def find(
    target: LocalTarget,
    model: str,
    prompts: Prompts,
    keep: int | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    batch_size: int = 1,
    on_prompt: Callable[[], object] = lambda: None,
) -> HeadsFile:
    """Let the target write behind ``prompts`` and count, for every head, how often it looked where a token came from.

    Args:
        target: all of it, in this process.
        keep: heads at most; by default the published 50, but a sixth of all in a small model.
        batch_size: prompts side by side; changes the time only.
        on_prompt: called as each prompt is done.

    Raises:
        ConfigError: no token that was written occurs in the text before it.
    """
    spec = target.info.spec
    counter = HeadCounter(spec.n_layers, spec.n_heads)
    pool = SpeculatorPool(extra={counter.name: lambda _: counter})
    # Every head's queries of a chunk are kept for a moment: a small chunk bounds that.
    engine = Engine(target, pool, SchedulerOptions(prefill_chunk=128))
    params = SamplingParams(
        max_tokens=max_new_tokens,
        min_tokens=max_new_tokens // 4,  # a model that says nothing would tell nothing
        temperature=TEMPERATURE,
        stop_ids=spec.eos_ids,
    )
    # The counter drafts nothing; but for a request that may have no nodes, nothing would be read back.
    for _ in engine.run([Request(list(prompt), params, counter.name, 1) for prompt in prompts], batch_size):
        on_prompt()
    if not counter.n_tokens:
        raise ConfigError(
            f"no induction head was found in {len(prompts)} prompts: no token the model wrote occurs in the text "
            "before it; give more --prompts, of which the answers repeat something"
        )
    return HeadsFile(
        model=model,
        n_layers=spec.n_layers,
        n_heads=spec.n_heads,
        n_tokens=counter.n_tokens,
        heads=best_heads(counter, keep or min(KEEP, max(4, spec.n_layers * spec.n_heads // SHARE))),
        hits=counter.hits.tolist(),
    )


def encoded(path: Path, questions: Sequence[Question], longest: int) -> list[list[int]]:
    """First turns for the model in directory ``path``, as a chat if it is a chat model; the last ``longest`` tokens."""
    tokenizer = load_tokenizer(path)
    if not tokenizer.chat_template:
        return [encode_raw(tokenizer, question.text)[-longest:] for question in questions]
    return [encode_chat(tokenizer, Conversation(question).ask())[-longest:] for question in questions]


def longest_prompt(target: LocalTarget, max_new_tokens: int = MAX_NEW_TOKENS) -> int:
    """Tokens of the longest prompt that leaves room for an answer.

    Raises:
        ConfigError: there is no room for both.
    """
    longest = target.info.max_model_len - max_new_tokens
    if longest < 1:
        raise ConfigError(f"a context of {target.info.max_model_len} tokens has no room for {max_new_tokens} new ones")
    return longest


def known_heads(path: Path, spec: ModelSpec, file: Path | None) -> Heads:
    """Heads that need no search: those of ``file``, else cached ones, else none.

    Raises:
        ConfigError: ``file`` is broken or belongs to another model.
    """
    if file is not None:
        return read_heads(file, model_hash(path), spec.n_layers, spec.n_heads).pairs
    model = model_hash(path)
    cached = _cached(model)
    if not cached.exists():
        return ()
    try:
        return read_heads(cached, model, spec.n_layers, spec.n_heads).pairs
    except ConfigError as error:  # an older version's, or half a disk: found again, and written over
        print(f"spectra: {error}", file=sys.stderr)
        return ()


def ensure_heads(path: Path, spec: ModelSpec, file: Path | None, load: Callable[[], LocalTarget]) -> Heads:
    """Heads of the model in directory ``path``; found on the built-in prompts, and cached, if they are not known.

    Raises:
        ConfigError: ``file`` is broken or belongs to another model, or none can be found.
    """
    heads = known_heads(path, spec, file)
    if heads:
        return heads
    model = model_hash(path)
    target = load()
    prompts = encoded(path, [Question([text]) for text in PROMPTS], longest_prompt(target))
    with bar("finding induction heads", len(prompts), "prompt") as shown:
        found = find(target, model, prompts, on_prompt=shown.update)
    try:
        write_heads(_cached(model), found)
    except ConfigError as error:
        print(f"spectra: {error}; they will be looked for again next time", file=sys.stderr)
    return found.pairs


def _cached(model: str) -> Path:
    return cache_folder() / "heads" / f"{model}.json"


def with_model(options: SpeculatorOptions, spec: ModelSpec, heads: Heads) -> SpeculatorOptions:
    """Return the options with the model's layer at the published relative depth, and its induction heads."""
    return replace(options, layer=paper_layer(spec.n_layers), heads=heads)


def names_method(methods: str | Sequence[str]) -> bool:
    """Whether any of ``methods``, each one name or several joined with ``+``, needs heads."""
    listed = [methods] if isinstance(methods, str) else methods
    return any(METHOD in (part.strip() for part in name.split("+")) for name in listed)


def offline_heads(arguments: argparse.Namespace, path: Path, target: LocalTarget) -> Heads:
    """Heads for an offline command: those of ``--heads``; else, if a method of the command needs them, cached or found.

    Raises:
        ConfigError: the file is broken or belongs to another model, or no heads can be found.
    """
    spec = target.info.spec
    if names_method(getattr(arguments, "methods", None) or arguments.method):
        return ensure_heads(path, spec, arguments.heads, lambda: target)
    return () if arguments.heads is None else known_heads(path, spec, arguments.heads)
