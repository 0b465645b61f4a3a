"""Provides the induction heads of a target: from a file, from the cache, or found now."""

from __future__ import annotations

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
from speculators.pld_plus.induction_heads import HeadCounter, Heads, HeadsFile, best_heads, read_heads, write_heads
from speculators.pld_plus.speculator import paper_layer
from speculators.pool import SpeculatorPool

if TYPE_CHECKING:
    from engine.target_model.local import LocalTarget  # loads torch, which known heads do not need
    from speculators.method import SpeculatorOptions

METHOD = "pld-plus-a"  # the only method that needs heads
KEEP = 50  # heads at most: the published number, for a model with 1024
SHARE = 6  # and at most one head in 6: in a small model the others add only noise
MAX_NEW_TOKENS = 64  # per prompt
TEMPERATURE = 0.8  # the greedy text of a small model repeats itself, and would dominate the counts


def find(
    target: LocalTarget,
    model: str,
    prompts: Sequence[Sequence[int]],
    keep: int | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    batch_size: int = 1,
    on_prompt: Callable[[], object] = lambda: None,
) -> HeadsFile:
    """Let the target answer ``prompts``, and return the heads that attend most often to the source of a copied token.

    Raises ConfigError if no generated token occurs in the text before it.

    Args:
        target: whole, in this process.
        model: its hash, for the file.
        keep: heads at most; by default 50, but at most a sixth of all.
        on_prompt: called after each prompt.
    """
    spec = target.info.spec
    counter = HeadCounter(spec.n_layers, spec.n_heads)
    pool = SpeculatorPool(extra={counter.name: lambda _: counter})
    # The queries of all heads are kept for a chunk; a small chunk bounds their memory.
    engine = Engine(target, pool, SchedulerOptions(prefill_chunk=128))
    params = SamplingParams(
        max_tokens=max_new_tokens,
        min_tokens=max_new_tokens // 4,  # an empty answer has nothing to count
        temperature=TEMPERATURE,
        stop_ids=spec.eos_ids,
    )
    # The counter drafts nothing, but attention is read back only for a request that may have nodes.
    for _ in engine.run([Request(list(prompt), params, counter.name, 1) for prompt in prompts], batch_size):
        on_prompt()
    if not counter.n_tokens:
        raise ConfigError(
            f"no induction head was found in {len(prompts)} prompts: no token the model wrote occurs in the text "
            "before it; give more --prompts, whose answers repeat something"
        )
    return HeadsFile(
        model=model,
        n_layers=spec.n_layers,
        n_heads=spec.n_heads,
        n_tokens=counter.n_tokens,
        heads=best_heads(counter, keep or min(KEEP, max(4, spec.n_layers * spec.n_heads // SHARE))),
        hits=counter.hits.tolist(),
    )


def encoded(path: Path, questions: Sequence[Question], longest: int = 1 << 20) -> list[list[int]]:
    """Return the first turns as token ids for the model in directory ``path``, each cut to its last ``longest``.

    A chat model reads them through its chat template.
    """
    tokenizer = load_tokenizer(path)
    if not tokenizer.chat_template:
        return [encode_raw(tokenizer, question.text)[-longest:] for question in questions]
    return [encode_chat(tokenizer, Conversation(question).ask())[-longest:] for question in questions]


def longest_prompt(target: LocalTarget, max_new_tokens: int = MAX_NEW_TOKENS) -> int:
    """Return how many tokens a prompt may have with ``max_new_tokens`` after it; raise ConfigError if none fits."""
    longest = target.info.max_model_len - max_new_tokens
    if longest < 1:
        raise ConfigError(f"a context of {target.info.max_model_len} tokens has no room for {max_new_tokens} new ones")
    return longest


def model_heads(path: Path, spec: ModelSpec, file: Path | None, load: Callable[[], LocalTarget] | None) -> Heads:
    """Return the heads of the model in directory ``path``: those of ``file``, else cached ones.

    Without either, finds them on the built-in prompts with the target that ``load`` returns, and caches them; returns
    none if ``load`` is None. Raises ConfigError if ``file`` is broken or another model's, or no heads can be found.
    """
    model = model_hash(path)
    if file is not None:
        return read_heads(file, model, spec.n_layers, spec.n_heads).pairs
    cached = cache_folder() / "heads" / f"{model}.json"
    if cached.exists():
        try:
            return read_heads(cached, model, spec.n_layers, spec.n_heads).pairs
        except ConfigError as error:  # from an older version, or truncated: overwritten below
            print(f"spectra: {error}", file=sys.stderr)
    if load is None:
        return ()
    target = load()
    prompts = encoded(path, [Question([text]) for text in PROMPTS], longest_prompt(target))
    with bar("finding induction heads", len(prompts), "prompt") as shown:
        found = find(target, model, prompts, on_prompt=shown.update)
    try:
        write_heads(cached, found)
    except ConfigError as error:
        print(f"spectra: {error}; the next start searches for heads again", file=sys.stderr)
    return found.pairs


def with_model(options: SpeculatorOptions, spec: ModelSpec, heads: Heads) -> SpeculatorOptions:
    """Return the options with the heads of the model, and its layer at the published relative depth."""
    return replace(options, layer=paper_layer(spec.n_layers), heads=heads)


def names_method(methods: Sequence[str]) -> bool:
    """Return whether any of ``methods``, each one name or several joined with ``+``, reads heads."""
    return any(part.strip() == METHOD for name in methods for part in name.split("+"))
