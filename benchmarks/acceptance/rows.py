"""The rows that ``benchmarks.acceptance`` can measure: methods and their settings, by label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.acceptance.paper_rows import paper_rows
from benchmarks.acceptance.runs import AcceptanceRow, with_settings
from engine.request import DEFAULT_NODES
from retrieval_store.index.index import Library
from speculators.draft_model.config import DraftModelConfig
from speculators.method import SpeculatorOptions
from speculators.ngrams.anpd import AnpdConfig
from speculators.ngrams.lookahead import LookaheadConfig
from speculators.ngrams.suffix import SuffixConfig
from speculators.peers.adapld import AdaPldConfig
from speculators.peers.stand import StandConfig
from speculators.pld_plus.induction_heads import Heads
from speculators.pld_plus.speculator import PldPlusConfig
from speculators.registry import warmed
from speculators.spectra.core import SpectraCoreConfig
from speculators.spectra.retrieval import SpectraRetrievalConfig
from speculators.spectra.speculator import SpectraConfig
from speculators.successors.token_recycling import TokenRecyclingConfig
from speculators.successors.vocabulary import VocabularyRows

BOTH = "suffix+token-recycling"
SIX = ("pld", "suffix", "spectra-core", "token-recycling", "goose", BOTH)
Rows = dict[str, AcceptanceRow]


class RowInputs(NamedTuple):
    """What rows are made of; each part is made when a row asks for it."""

    layer: int  # of the model, whose states are compared
    heads: Callable[[], Heads]
    vocabulary: Callable[[], VocabularyRows | None]
    library: Callable[[], Library]
    drafters: Mapping[str, str]  # directory of every trained drafter, and its method
    draft_model: Path | None


def _methods(inputs: RowInputs) -> Rows:
    published = with_settings(SuffixConfig(mode="paper"), TokenRecyclingConfig(mode="paper", use_prompt=False))
    layer = SpeculatorOptions(layer=inputs.layer)
    heads = inputs.heads()
    plus = layer.with_settings(PldPlusConfig.paper(inputs.layer, heads))
    rows = {
        "pld": AcceptanceRow("pld"),
        "pld-plus-h, published": AcceptanceRow("pld-plus-h", plus),
        "pld-plus-a, published": AcceptanceRow("pld-plus-a", replace(plus, heads=heads)),
        "pld-plus-h": AcceptanceRow("pld-plus-h", layer),
        "anpd, published": AcceptanceRow("anpd", with_settings(AnpdConfig.paper())),
        "anpd": AcceptanceRow("anpd"),
        "suffix, published": AcceptanceRow("suffix", published),
        "suffix": AcceptanceRow("suffix"),
        "lookahead, published": AcceptanceRow("lookahead", with_settings(LookaheadConfig.paper())),
        "lookahead": AcceptanceRow("lookahead"),
        "spectra-core, published, 128 nodes": AcceptanceRow(
            "spectra-core", with_settings(SpectraCoreConfig.paper()), 128
        ),
        "spectra-core": AcceptanceRow("spectra-core"),
        "token-recycling, published, 80 nodes": AcceptanceRow("token-recycling", published, 80),
        "token-recycling": AcceptanceRow("token-recycling"),
        "adapld": AcceptanceRow("adapld", layer),
        "stand": AcceptanceRow("stand"),
        "goose": AcceptanceRow("goose"),
        BOTH: AcceptanceRow(BOTH),
    }
    if (vocabulary := inputs.vocabulary()) is not None:
        rows[f"{BOTH}, vocabulary read"] = AcceptanceRow(BOTH, SpeculatorOptions(vocabulary=vocabulary))
    return rows


def _sizes(_: RowInputs) -> Rows:
    return {f"{method}, {n} nodes": AcceptanceRow(method, max_nodes=n) for n in (64, 16, 8) for method in SIX}


def _mixes(inputs: RowInputs) -> Rows:
    layer = SpeculatorOptions(layer=inputs.layer)
    published = with_settings(SuffixConfig(mode="paper"), TokenRecyclingConfig(mode="paper"))
    states = layer.with_settings(AdaPldConfig(branches=0, ngram_min=2))
    return {
        BOTH: AcceptanceRow(BOTH),
        "both published, combined": AcceptanceRow(BOTH, published),
        **{
            f"{BOTH}+{part}": AcceptanceRow(f"{BOTH}+{part}", layer)
            for part in ("pld+anpd", "lookahead", "spectra-core", "goose", "adapld", "stand")
        },
        f"{BOTH}+adapld without branches": AcceptanceRow(f"{BOTH}+adapld", states),
        "pld+spectra-core": AcceptanceRow("pld+spectra-core"),
        "anpd+lookahead": AcceptanceRow("anpd+lookahead"),
        "stand, the target's noise": AcceptanceRow("stand", with_settings(StandConfig(noise="target"))),
        **{
            f"{method}, warm": AcceptanceRow(method, warmed(SpeculatorOptions()), warm=True)
            for method in ("suffix", "stand", "goose", BOTH)
        },
    }


def _core(_: RowInputs) -> Rows:
    changes: dict[str, dict[str, Any]] = {
        "spectra-core": {},
        "w/o forward dict": {"use_forward": False},
        "w/o backward dict": {"use_backward": False},
        "w/o sub-n-grams": {"use_sub_ngrams": False},
        "w/o learning the prompt": {"learn_from_prompt": False},
        "w/o learning the output": {"learn_from_output": False},
        "paper's guess order": {"guess_order": "paper"},
        **{f"explore {share}": {"explore": share} for share in (0.1, 0.5, 0.9)},
        **{f"backward_tokens {n}": {"backward_tokens": n} for n in (5, 20)},
        **{f"probe_share {share}": {"probe_share": share} for share in (0.2, 0.6)},
        "one pool row, no probe share": {"probe_share": 0.0, "pool_rows": 1},
        **{
            f"N {n}, W {w}": {"ngram": n, "pool_rows": w}
            for n in (3, 4, 5, 7)
            for w in (5, 15, 25)
            if (n, w) != (5, 15)
        },
    }
    return {
        label: AcceptanceRow("spectra-core", with_settings(SpectraCoreConfig(**change)))
        for label, change in changes.items()
    }


def _lookahead(_: RowInputs) -> Rows:
    def row(config: LookaheadConfig, max_nodes: int = DEFAULT_NODES) -> AcceptanceRow:
        return AcceptanceRow("lookahead", with_settings(config), max_nodes)

    paper = LookaheadConfig.paper()
    shapes = ((3, 7, 7), (4, 10, 15), (5, 5, 15), (5, 9, 15), (7, 5, 7), (10, 3, 7))
    return {
        "lookahead, published": row(paper),
        "+ prompt": row(replace(paper, learn_from_prompt=True)),
        "+ output": row(replace(paper, learn_from_output=True)),
        "+ prompt and output": row(replace(paper, learn_from_prompt=True, learn_from_output=True)),
        "lookahead": row(LookaheadConfig()),
        **{f"N {n}, W {w}, G {g}": row(LookaheadConfig(n, w, g)) for n, w, g in shapes},
    }


def _retrieval(inputs: RowInputs) -> Rows:
    library = inputs.library()
    ours = SpeculatorOptions(retrieval=lambda: library).with_settings(SpectraCoreConfig(label_dictionaries=True))
    three = f"{BOTH}+spectra-retrieval"
    apart = ours.with_settings(SpectraRetrievalConfig(mode="apart"))
    rows = {
        "spectra-core": AcceptanceRow("spectra-core", ours),
        "rest": AcceptanceRow("rest", ours),
        "spectra-retrieval": AcceptanceRow("spectra-retrieval", ours),
        BOTH: AcceptanceRow(BOTH, ours),
    }
    for end, nodes in (("", DEFAULT_NODES), (", 16 nodes", 16)):
        rows |= {
            f"spectra{end}": AcceptanceRow("spectra", ours, nodes),
            f"spectra, no reserve{end}": AcceptanceRow("spectra", ours.with_settings(SpectraConfig(reserve=0)), nodes),
            f"spectra, paper's order{end}": AcceptanceRow("spectra", ours.with_settings(SpectraConfig("paper")), nodes),
            f"{three}{end}": AcceptanceRow(three, ours, nodes),
            f"{three}, apart{end}": AcceptanceRow(three, apart, nodes),
        }
    return rows


def _pld_plus(inputs: RowInputs) -> Rows:
    heads = inputs.heads()
    paper, ours = PldPlusConfig.paper(inputs.layer, heads), PldPlusConfig(layer=inputs.layer, heads=heads)

    def plus(method: str, config: PldPlusConfig, max_nodes: int = 128) -> AcceptanceRow:
        options = SpeculatorOptions(layer=config.layer, heads=heads)
        return AcceptanceRow(method, options.with_settings(config), max_nodes)

    depths = range(0, inputs.layer * 32 // 9, max(1, inputs.layer * 32 // 9 // 6))
    return {
        "pld": AcceptanceRow("pld"),
        **{
            f"pld-plus-{kind}, K {k}": plus(f"pld-plus-{kind}", replace(paper, draft_tokens=k))
            for kind in "ha"
            for k in (5, 10, 20, 40, 70, 100)
        },
        **{f"pld-plus-h, layer {layer}": plus("pld-plus-h", replace(paper, layer=layer)) for layer in depths},
        "pld-plus-h, projected": plus("pld-plus-h", replace(paper, dims=ours.dims)),
        "pld-plus-h, four branches, 64 nodes": plus("pld-plus-h", ours, DEFAULT_NODES),
        "pld-plus-a, four branches, 64 nodes": plus("pld-plus-a", ours, DEFAULT_NODES),
    }


def _trained(inputs: RowInputs) -> Rows:
    rows = {f"{BOTH}, {n} nodes": AcceptanceRow(BOTH, max_nodes=n) for n in (16, 64)}
    for drafter, method in inputs.drafters.items():
        options, name = SpeculatorOptions(trained=method), Path(drafter).name
        rows |= {
            f"{label}, {n} nodes": AcceptanceRow(methods, options, n, drafter)
            for label, methods in ((name, method), (f"{BOTH}+{name}", f"{BOTH}+{method}"))
            for n in (16, 64)
        }
    return rows


def _draft(inputs: RowInputs) -> Rows:
    def drafting(n_nodes: int, k: int = 5, method: str = "draft-model", **changes: Any) -> AcceptanceRow:
        config = DraftModelConfig(draft_tokens=k, tree_nodes=n_nodes, **changes)
        options = SpeculatorOptions(draft_model=str(inputs.draft_model)).with_settings(config)
        return AcceptanceRow(method, options)

    return {
        **{f"draft-model, chain of {k}": drafting(0, k) for k in (5, 10)},
        **{f"draft-model, tree of {n}": drafting(n) for n in (5, 10, 16, 32, 64)},
        "draft-model, tree of 16, beam 4": drafting(16, tree_beam=4),
        "draft-model, tree of 64, 8 deep": drafting(64, 8),
        "draft-model+pld, tree of 16": drafting(16, method="draft-model+pld"),
    }


def _paper(inputs: RowInputs) -> Rows:
    return paper_rows(inputs.library())


TABLES = MappingProxyType(
    {
        "methods": _methods,
        "sizes": _sizes,
        "mixes": _mixes,
        "core": _core,
        "lookahead": _lookahead,
        "pld-plus": _pld_plus,
        "paper": _paper,
        "retrieval": _retrieval,
        "draft": _draft,
        "trained": _trained,
    }
)
"""Tables by name, as functions of what their rows are made of."""
