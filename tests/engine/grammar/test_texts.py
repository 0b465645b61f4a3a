"""A text under a grammar equals masked decoding without speculation, whatever drafts, batches or stages."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from engine.errors import RequestError
from engine.events import ABORT, LENGTH, STOP
from engine.grammar import compiler
from engine.grammar.grammar import Grammar, Thought
from engine.grammar.words import has
from engine.loop import Completion, Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.grammar import GrammarConfig
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool
from tests.support.engines import complete_all, make_engine
from tests.support.grammars import PERSON, of_lark, of_regex, of_schema, tiny_grammars
from tests.support.pretended_device import pretended_device
from tests.support.tiny_models import tiny_tokenizer

EOS = 2
MARKER = "e"  # any text that a random model writes now and then
GRAMMARS = {
    "schema": of_schema(PERSON),
    "compact": of_schema(PERSON, whitespace=False),
    "regex": of_regex("(fox|dog)(, (fox|dog)){2,5}"),
    "lark": of_lark('start: word (" " word)*\nword: "The" | "lazy" | /[0-9]{1,3}/'),
    "thought": Grammar(of_schema(PERSON, whitespace=False).source, of_regex("(fox|dog){3}").source, Thought(MARKER)),
    "forced": of_lark('start: "Speculation drafts tokens" | "Speculation verifies"'),
}
JSON = [GRAMMARS["schema"], GRAMMARS["compact"]]
STYLES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "seed": 5},
    "rejection": {"temperature": 0.9, "seed": 6, "verification": "rejection"},
    "truncated": {"temperature": 1.2, "seed": 7, "top_k": 5, "top_p": 0.8, "min_p": 0.01},
    "penalties": {"temperature": 0.8, "seed": 8, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "bias": {"temperature": 1.0, "seed": 9, "logit_bias": {40: 20.0, 41: -5.0}},
}
METHODS = ("always-right", "always-wrong", "pld", "suffix+token-recycling", "spectra", "auto")


def target_of(path: Path, stages: int = 1) -> LocalTarget:
    return LocalTarget.load(TargetOptions(str(path), stages=stages, kv_bytes=1 << 22, block_size=16), path)


def job(grammar: Grammar, text: str, method: str = "", n: int = 40, **style: Any) -> Request:
    params = SamplingParams(max_tokens=n, stop_ids=(EOS,), grammar=grammar, **style)
    return Request(tiny_tokenizer().encode(text), params, method)


def written(ids: list[int]) -> str:
    text: str = tiny_tokenizer().decode([token for token in ids if token != EOS])
    return text


CELLS = [
    pytest.param(style, method, marks=[pytest.mark.matrix] * ((i - j) % 6 != 0))
    for i, style in enumerate(STYLES)
    for j, method in enumerate(METHODS)
]


@pytest.mark.parametrize(("style", "method"), CELLS)
def test_drafts_batches_and_stages_do_not_change_a_masked_text(style: str, method: str, tiny_checkpoint: Path) -> None:
    jobs = [job(grammar, f"Tell {i}:", **STYLES[style]) for i, grammar in enumerate(GRAMMARS.values())]
    plain = complete_all(make_engine(target_of(tiny_checkpoint)), jobs, 1)
    answers = {tuple(one.prompt): done.token_ids for one, done in zip(jobs, plain, strict=True)}
    engine = make_engine(target_of(tiny_checkpoint, 2), answers, SchedulerOptions(prefill_chunk=7))
    done = complete_all(engine, [Request(one.prompt, one.params, method) for one in jobs])
    if style != "rejection":  # its texts have the same distribution, but depend on drafts
        assert [each.token_ids for each in done] == [each.token_ids for each in plain]
        assert method != "always-right" or sum(each.stats.accepted_tokens for each in done) > 20
    for one, each in zip(jobs, done, strict=True):
        assert each.finish_reason in (STOP, LENGTH)
        assert fits(one, each)
        if each.finish_reason == STOP and one.params.grammar in JSON:
            jsonschema.validate(json.loads(written(each.token_ids)), PERSON)


def fits(one: Request, done: Completion) -> bool:
    """Whether every token was allowed where it stands, and a text that stopped is complete."""
    assert one.params.grammar is not None
    state = tiny_grammars().state(one.params.grammar)
    for token in done.token_ids:
        if not has(state.words(), token):
            return False
        state.advance(token)
    return not state.error and state.is_ended == (done.finish_reason == STOP)


def test_a_text_under_a_grammar_continues_after_any_of_its_tokens(tiny_checkpoint: Path) -> None:
    one = job(GRAMMARS["compact"], "Go on:", **STYLES["penalties"])
    (whole,) = complete_all(make_engine(target_of(tiny_checkpoint)), [one])
    cuts = range(len(whole.token_ids))
    jobs = [Request(one.prompt, one.params, "always-right", emitted=whole.token_ids[:cut]) for cut in cuts]
    answers = {tuple(one.prompt): whole.token_ids}
    engine = make_engine(target_of(tiny_checkpoint, 2), answers, SchedulerOptions(prefill_chunk=13))
    for cut, rest in zip(cuts, complete_all(engine, jobs), strict=True):
        assert rest.token_ids == whole.token_ids[cut:]
        assert rest.finish_reason == whole.finish_reason


def test_min_tokens_yields_to_a_grammar_that_allows_only_an_end(tiny_checkpoint: Path) -> None:
    short = job(of_regex("fox"), "Say:", min_tokens=20)
    longer = job(of_regex("(fox)+"), "Say:", min_tokens=20, n=30)
    for device in (nullcontext(), pretended_device()):
        with device:
            first, second = complete_all(make_engine(target_of(tiny_checkpoint)), [short, longer])
        assert written(first.token_ids) == "fox"
        assert (first.finish_reason, first.token_ids[-1]) == (STOP, EOS)
        assert len(second.token_ids) > 20


def test_logprobs_are_those_of_the_model_without_the_mask(tiny_checkpoint: Path) -> None:
    one = job(of_regex("(fox|dog)+"), "Say:", n=8, logprobs=2)
    (done,) = complete_all(make_engine(target_of(tiny_checkpoint)), [one])
    assert done.logprobs is not None
    assert [entry.token_id for entry in done.logprobs] == done.token_ids
    assert any(entry.token_id not in dict(entry.top) for entry in done.logprobs)  # the best was not allowed
    free = job(of_regex("(?s:.*)"), "Say:", n=1, logprobs=2)
    (unmasked,) = complete_all(make_engine(target_of(tiny_checkpoint)), [free])
    assert unmasked.logprobs is not None
    assert done.logprobs[0].top == unmasked.logprobs[0].top


def test_too_much_work_ends_one_text_and_no_other(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "MASK_ITEMS", 120)
    bomb = job(of_lark('start: start start | "a" | "b"'), "Say:", n=100, min_tokens=90)
    free = job(GRAMMARS["regex"], "Say:")
    (alone,) = complete_all(make_engine(target_of(tiny_checkpoint)), [free])
    ended, done = complete_all(make_engine(target_of(tiny_checkpoint)), [bomb, free])
    assert ended.finish_reason == ABORT
    assert done.token_ids == alone.token_ids


@pytest.mark.parametrize("method", ["pld+grammar", "auto"])
def test_forced_tokens_are_drafts_that_save_forwards(method: str, tiny_checkpoint: Path) -> None:
    config = GrammarConfig(str(tiny_checkpoint), None, (EOS,), len(tiny_tokenizer()))
    pool = SpeculatorPool(SpeculatorOptions(grammar=config))
    (plain,) = complete_all(make_engine(target_of(tiny_checkpoint)), [job(GRAMMARS["compact"], "Tell:")])
    (done,) = complete_all(Engine(target_of(tiny_checkpoint), pool), [job(GRAMMARS["compact"], "Tell:", method)])
    assert done.token_ids == plain.token_ids
    assert done.stats.by_source["grammar"].accepted > 0


@pytest.mark.parametrize("stop_ids", [(), (40,)])
def test_a_grammar_needs_an_end(stop_ids: tuple[int, ...], tiny_checkpoint: Path) -> None:
    params = SamplingParams(grammar=of_regex("a"), stop_ids=stop_ids)
    with pytest.raises(RequestError, match="no end-of-sequence token"):
        make_engine(target_of(tiny_checkpoint)).submit(Request([5], params))
