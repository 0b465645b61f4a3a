"""Every method can be made, refuses wrong settings and writes the text of plain decoding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError, UnknownMethodError
from engine.protocol import BatchSpeculator, Needs, Speculator
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.auto.config import AutoConfig
from speculators.corpus.rest import RestConfig
from speculators.draft_model.config import DraftModelConfig
from speculators.method import SpeculatorOptions
from speculators.mixing.combined import CombinationConfig, Combined
from speculators.ngrams.anpd import AnpdConfig
from speculators.ngrams.lookahead import LookaheadConfig
from speculators.ngrams.pld import PldConfig
from speculators.ngrams.suffix import SuffixConfig
from speculators.peers.adapld import AdaPldConfig
from speculators.peers.goose import GooseConfig
from speculators.peers.stand import StandConfig
from speculators.pld_plus.speculator import PldPlusConfig
from speculators.prediction.speculator import PredictionConfig
from speculators.registry import available, create
from speculators.settings import Settings
from speculators.spectra.core import SpectraCoreConfig
from speculators.spectra.retrieval import SpectraRetrieval, SpectraRetrievalConfig
from speculators.spectra.speculator import SpectraConfig
from speculators.successors.config import CORPUS, TARGET, TEXT, SuccessorConfig
from speculators.successors.speculator import Successors
from speculators.successors.token_recycling import TokenRecyclingConfig
from speculators.testing import HashTarget
from tests.speculators.drafts import count_steps, first_draft, tokens_of, view
from tests.support.methods import AVAILABLE, NEEDS_INPUT, STANDALONE, TRAINED

ROOT = Path(__file__).resolve().parents[2]
NEEDS_CORPUS = r"'{}' needs texts to look up: give --retrieval"


@pytest.mark.cluster
def test_drafting_on_the_cpu_needs_no_torch() -> None:
    modules = "import speculators.pool, speculators.testing, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", modules], cwd=ROOT, check=False).returncode == 0


def test_available_methods_follow_the_protocol_and_have_their_name() -> None:
    for name in STANDALONE:
        speculator = create(name)
        assert isinstance(speculator, Speculator)
        assert speculator.name == name
    for name in TRAINED:
        assert create(name, SpeculatorOptions(trained=name)).name == name


@pytest.mark.parametrize(
    ("method", "said"),
    [
        *((name, f"{name}'? needs ") for name in NEEDS_INPUT),
        *((name, "unknown method .*; available: autoregressive, .*") for name in ("", "pld+", "PLD", "always-right")),
        *((name, "'mtp' is not available: none of the model families") for name in ("mtp", "pld+mtp")),
        ("pld+pld", "twice"),
        ("auto+pld", "list them in its setting 'sources'"),
        ("rest", NEEDS_CORPUS.format("rest")),
        ("pld+rest", "--retrieval"),
        ("spectra-retrieval", NEEDS_CORPUS.format("spectra-retrieval")),
        ("pld-plus-h", "needs a layer of the model"),
        ("pld+pld-plus-a", "--heads FILE"),
        ("draft-model", "--draft-model DIR"),
    ],
)
def test_a_method_that_cannot_be_made_is_refused_with_the_reason(method: str, said: str) -> None:
    with pytest.raises(UnknownMethodError, match=said) as caught:
        create(method)
    assert caught.value.param == "method"


def test_methods_that_do_not_fit_their_options_are_refused() -> None:
    with pytest.raises(UnknownMethodError, match="the drafter given is of method 'eagle'"):
        create("medusa", SpeculatorOptions(trained="eagle"))
    with pytest.raises(UnknownMethodError, match="magic"):
        create("auto", SpeculatorOptions().with_settings(AutoConfig(sources=("magic",))))


def is_made(name: str, options: SpeculatorOptions) -> bool:
    try:
        create(name, options)
    except UnknownMethodError:
        return False
    return True


@pytest.mark.parametrize(
    "options",
    [
        SpeculatorOptions(),
        SpeculatorOptions(retrieval=lambda: FixedLibrary(MemoryIndex([[1, 2, 3]])), trained="eagle"),
        SpeculatorOptions(layer=1, heads=((0, 0),)),
    ],
)
def test_names_are_available_exactly_when_they_can_be_made(options: SpeculatorOptions) -> None:
    assert available(options) == tuple(name for name in AVAILABLE if is_made(name, options))


def drafted(method: str, options: SpeculatorOptions, prompt: list[int]) -> list[int]:
    return tokens_of(b for b in first_draft(create(method, options), view(prompt)) if not b.probe)


def test_options_reach_their_method() -> None:
    library = FixedLibrary(MemoryIndex([[1, 2, 3]]))
    options = SpeculatorOptions(
        settings=(PldConfig(draft_tokens=1), SpectraCoreConfig(probe_top_k=5), RestConfig(fill=False)),
        retrieval=lambda: library,
        layer=3,
        heads=((0, 1),),
    ).with_settings(PldPlusConfig(dims=16))
    assert create("spectra-core", options).needs.probe_top_k == create("spectra", options).needs.probe_top_k == 5
    joined = create("pld + spectra-core", options)
    assert isinstance(joined, BatchSpeculator)
    assert (joined.name, joined.needs) == ("pld+spectra-core", Needs(probe_top_k=5))
    assert drafted("pld", options, [1, 2, 3, 1]) == [2]
    for method in ("rest", "spectra", "spectra-retrieval"):
        assert drafted(method, options, [1, 2]) == [3]
    assert create("pld-plus-a+pld-plus-h", options).needs == Needs(hidden_layer=3, hidden_dims=16, heads=((0, 1),))


def parts_of(method: str, *settings: Settings) -> list[str]:
    speculator = create(method, SpeculatorOptions(settings, retrieval=FixedLibrary))
    return [part.name for part in speculator._parts] if isinstance(speculator, Combined) else [speculator.name]


def test_names_that_can_be_mixed_become_one_model_and_published_algorithms_do_not() -> None:
    both, three = "token-recycling+suffix", "suffix+token-recycling+spectra-retrieval"
    options = SpeculatorOptions(retrieval=FixedLibrary)
    assert create(three, options).sources == (TEXT, TARGET, CORPUS)
    assert isinstance(create("spectra-retrieval", options), SpectraRetrieval)
    published = (("suffix", SuffixConfig(mode="paper")), ("token-recycling", TokenRecyclingConfig(mode="paper")))
    for method, settings in published:
        assert isinstance(create(method), Successors)
        assert not isinstance(create(method, SpeculatorOptions((settings,))), Successors)
        assert parts_of(both, settings) == both.split("+")
    assert parts_of("pld+" + both) == ["pld", both]
    assert parts_of(three, SpectraRetrievalConfig(mode="apart")) == ["suffix+token-recycling", "spectra-retrieval"]


@pytest.mark.parametrize(
    ("options", "sources"),
    [
        (SpeculatorOptions(), ["suffix+token-recycling", "pld", "prediction"]),
        (SpeculatorOptions((AutoConfig(sources=("pld", "lookahead")),)), ["pld", "lookahead", "prediction"]),
        (
            SpeculatorOptions(retrieval=FixedLibrary),
            ["suffix+token-recycling+spectra-retrieval", "pld", "prediction"],
        ),
        (
            SpeculatorOptions((AutoConfig(retrieval=False),), retrieval=FixedLibrary),
            ["suffix+token-recycling", "pld", "prediction"],
        ),
    ],
    ids=["none", "named", "corpus", "corpus not for auto"],
)
def test_the_sources_of_auto_are_the_named_ones_or_those_that_have_their_input(
    options: SpeculatorOptions, sources: list[str]
) -> None:
    auto = create("auto", options)
    assert isinstance(auto, BatchSpeculator)
    assert [part.name for part in auto._sources.every] == sources


TARGET_MODEL = HashTarget(48, n_successors=2)
PROMPT = [3, 1, 4, 1, 5]
LIBRARY = FixedLibrary(MemoryIndex([TARGET_MODEL.generate([i, i + 1], 60) for i in range(20)]))
ALL = "suffix+token-recycling+spectra-core+lookahead+pld+anpd"
VARIANTS: list[tuple[str, Settings]] = [
    *((name, Settings()) for name in STANDALONE),
    *((name, Settings()) for name in ("rest", "spectra-retrieval", "pld+spectra-core", "pld+autoregressive", ALL)),
    ("rest", RestConfig.paper()),
    ("anpd", AnpdConfig.paper()),
    ("anpd", AnpdConfig(prompt_window=0)),
    ("pld", PldConfig(max_branches=4)),
    ("lookahead", LookaheadConfig.paper()),
    ("suffix", SuffixConfig(mode="paper")),
    ("spectra", SpectraConfig("paper")),
    ("auto", AutoConfig(sources=("pld", "spectra-core", "lookahead"))),
]
UNAIDED = ("autoregressive", "prediction")  # without a prediction there is nothing to draft from


@pytest.mark.parametrize(("method", "settings"), VARIANTS, ids=str)
def test_every_method_writes_the_text_of_plain_decoding_in_fewer_steps(method: str, settings: Settings) -> None:
    def n_steps(budget: int) -> int:
        speculator = create(method, SpeculatorOptions((settings,), retrieval=lambda: LIBRARY))
        return count_steps(speculator, TARGET_MODEL, PROMPT, 120, budget)

    assert n_steps(0) == 119
    assert all(n_steps(budget) <= 119 for budget in (1, 7))
    assert (n_steps(64) < 100) == (method not in UNAIDED)


NAN = float("nan")
REFUSED: list[tuple[type, dict[str, list[Any]]]] = [
    (AdaPldConfig, {"draft_tokens": [0], "branches": [-1], "least": [2.0], "top_k": [0], "dims": [-1]}),
    (AdaPldConfig, {"ngram_min": [4]}),
    (AnpdConfig, {"ngram": [1, 33], "draft_tokens": [0], "max_nodes": [0], "level_weight": [0.5, 1e7]}),
    (AnpdConfig, {"escape": [-1.0], "min_path": [1.0], "near_path": [-0.1], "max_places": [0]}),
    (AnpdConfig, {"near_places": [-1], "prompt_window": [-1]}),
    (AutoConfig, {"loss": [0.0, -0.1, 1.5, NAN], "sources": [("pld", "auto")]}),
    (CombinationConfig, {"probe_share": [-0.1, 1.5]}),
    (DraftModelConfig, {"draft_tokens": [0], "tree_nodes": [-1], "tree_beam": [0], "prefill_chunk": [0]}),
    (DraftModelConfig, {"block_size": [0], "kv_gib": [0.0, NAN]}),
    (GooseConfig, {"nodes": [0], "top_k": [0], "least": [2.0], "ngrams": [(), (3, 4)], "ratios": [(0.1, 0.2, 1.5)]}),
    (LookaheadConfig, {"level": [2], "window": [0], "guesses": [0], "window_share": [1.5], "prompt_window": [-1]}),
    (LookaheadConfig, {"max_keys": [1]}),
    (PldConfig, {"ngram_min": [0, 4], "draft_tokens": [0], "max_branches": [0], "tie_break": ["best"]}),
    (PldPlusConfig, {"draft_tokens": [0], "max_branches": [0], "max_candidates": [0], "branch_tokens": [0]}),
    (PldPlusConfig, {"layer": [-1], "dims": [-1], "heads": [((0, -1),), ((1, 1), (1, 1))]}),
    (PredictionConfig, {"least": [0.0, 1.5], "places": [0, 65]}),
    (
        RestConfig,
        {"suffix_min": [0, 17], "suffix_max": [0, 17], "draft_tokens": [0, 17], "samples": [0], "prior": [-1]},
    ),
    (SpectraConfig, {"mode": ["best"], "reserve": [-1]}),
    (SpectraCoreConfig, {"ngram": [1], "pool_rows": [0], "max_guesses": [0], "per_key": [0], "explore": [1.5]}),
    (SpectraCoreConfig, {"probe_share": [-0.1], "guess_order": ["forward"], "max_backward_keys": [3]}),
    (StandConfig, {"nodes": [0], "depth": [0], "order": [0], "top_k": [0], "noise": ["none"]}),
    (SuccessorConfig, {"top_k": [0], "text_width": [0], "target_rows": [3], "recent": [0, 257], "adapt": [-0.1]}),
    (SuccessorConfig, {"recent_decay": [1.1], "least": [2.0], "target_orders": [(2, 1)], "prompt_window": [-1]}),
    (SuccessorConfig, {"text_orders": [(0, 1), (1, 9)]}),
    (SuffixConfig, {"mode": ["best"], "max_match": [0], "max_draft": [0], "max_occurrences": [0], "history": [-1]}),
    (SuffixConfig, {"draft_factor": [-1.0], "min_probability": [0.0]}),
    (TokenRecyclingConfig, {"mode": ["best"], "top_k": [0], "max_nodes": [0], "depth": [0], "max_tokens": [0]}),
]


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [(config, field, value) for config, fields in REFUSED for field, values in fields.items() for value in values],
)
def test_a_setting_out_of_range_is_refused_by_name(config: type, field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        config(**{field: value})
