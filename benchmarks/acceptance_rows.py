"""The rows that ``benchmarks.acceptance`` can measure: methods and their settings, by label."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from speculators.pld_plus.speculator import PldPlusConfig, paper_layer
from speculators.registry import warmed
from speculators.spectra.core import SpectraCoreConfig
from speculators.spectra.retrieval import SpectraRetrievalConfig
from speculators.spectra.speculator import SpectraConfig
from speculators.successors.token_recycling import TokenRecyclingConfig
from speculators.successors.vocabulary import VocabularyRows


@dataclass(frozen=True, slots=True)
class AcceptanceRow:
    """One line of the table."""

    method: str
    core: SpectraCoreConfig | None = None
    max_nodes: int = DEFAULT_NODES
    options: SpeculatorOptions | None = None  # of other methods than the core
    warm: bool = False  # one pass over the prompts, one by one, with state kept from each to the next


def rows(which: str, vocabulary: VocabularyRows | None = None) -> dict[str, AcceptanceRow]:
    """Rows by label; ``short`` leaves the ablations out, ``ngrams`` compares the n-gram methods."""
    if which == "ngrams":
        return ngram_rows()
    if which == "mixed":
        return mixed_rows(vocabulary)
    paper, ours = SpectraCoreConfig.paper(), SpectraCoreConfig()
    short = {
        "autoregressive": AcceptanceRow("autoregressive"),
        "pld": AcceptanceRow("pld"),
        "spectra-core, as published, 128 nodes": AcceptanceRow("spectra-core", paper, 128),
        "spectra-core": AcceptanceRow("spectra-core", ours),
        "spectra-core, 16 nodes": AcceptanceRow("spectra-core", ours, 16),
        "pld+spectra-core": AcceptanceRow("pld+spectra-core", ours),
    }
    if which == "short":
        return short
    published = {
        "published, our guess order": replace(paper, guess_order="backward-first"),
        "published + learns prompt": replace(paper, learn_from_prompt=True),
        "published + learns prompt and output": replace(paper, learn_from_prompt=True, learn_from_output=True),
    }
    default = {
        "w/o forward dict": replace(ours, use_forward=False),
        "w/o backward dict": replace(ours, use_backward=False),
        "w/o sub-n-grams": replace(ours, use_sub_ngrams=False),
        "w/o learning the prompt": replace(ours, learn_from_prompt=False),
        "w/o learning the output": replace(ours, learn_from_output=False),
        "paper's guess order": replace(ours, guess_order="paper"),
        "explore 0.1": replace(ours, explore=0.1),
        "explore 0.5": replace(ours, explore=0.5),
        "explore 0.9": replace(ours, explore=0.9),
        "backward_tokens 5": replace(ours, backward_tokens=5),
        "backward_tokens 20": replace(ours, backward_tokens=20),
        "one pool row, no probe share": replace(ours, probe_share=0.0, pool_rows=1),
        "probe_share 0.2": replace(ours, probe_share=0.2),
        "probe_share 0.6": replace(ours, probe_share=0.6),
    }
    return (
        short
        | {label: AcceptanceRow("spectra-core", config, 128) for label, config in published.items()}
        | {label: AcceptanceRow("spectra-core", config) for label, config in default.items()}
    )


def mixed_rows(vocabulary: VocabularyRows | None) -> dict[str, AcceptanceRow]:
    """The mixed model, its halves, what they come from, and what other methods add to it."""
    ours = SpeculatorOptions(vocabulary=vocabulary)
    both = "suffix+token-recycling"
    prompt = SpeculatorOptions().with_settings(SuffixConfig(mode="paper"), TokenRecyclingConfig(mode="paper"))
    paper = prompt.with_settings(TokenRecyclingConfig(mode="paper", use_prompt=False))
    return {
        "autoregressive": AcceptanceRow("autoregressive"),
        "suffix, published": AcceptanceRow("suffix", options=paper),
        "suffix": AcceptanceRow("suffix"),
        "token-recycling, published, 80 nodes": AcceptanceRow("token-recycling", max_nodes=80, options=paper),
        "token-recycling, published + prompt's logits, 80 nodes": AcceptanceRow(
            "token-recycling", max_nodes=80, options=prompt
        ),
        "token-recycling": AcceptanceRow("token-recycling", options=ours),
        both: AcceptanceRow(both, options=ours),
        f"{both}, 16 nodes": AcceptanceRow(both, max_nodes=16, options=ours),
        f"{both}, 8 nodes": AcceptanceRow(both, max_nodes=8, options=ours),
        f"{both}, vocabulary not read": AcceptanceRow(both),
        f"{both}, vocabulary not read, 16 nodes": AcceptanceRow(both, max_nodes=16),
        "both published, combined": AcceptanceRow(both, options=prompt),
        f"{both}+spectra-core": AcceptanceRow(f"{both}+spectra-core", options=ours),
        f"{both}+lookahead": AcceptanceRow(f"{both}+lookahead", options=ours),
        f"{both}+pld+anpd": AcceptanceRow(f"{both}+pld+anpd", options=ours),
        f"{both}, warm": AcceptanceRow(both, options=warmed(ours), warm=True),
        f"{both}, 16 nodes, warm": AcceptanceRow(both, max_nodes=16, options=warmed(ours), warm=True),
        "token-recycling, published, 80 nodes, warm": AcceptanceRow(
            "token-recycling", None, 80, warmed(paper), warm=True
        ),
    }


def ngram_rows() -> dict[str, AcceptanceRow]:
    """pld, anpd, lookahead and spectra-core, and what the options of the middle two do."""

    def anpd(config: AnpdConfig) -> AcceptanceRow:
        return AcceptanceRow("anpd", options=SpeculatorOptions().with_settings(config))

    def lookahead(**changes: Any) -> AcceptanceRow:
        return AcceptanceRow(
            "lookahead", options=SpeculatorOptions().with_settings(replace(LookaheadConfig.paper(), **changes))
        )

    return {
        "autoregressive": AcceptanceRow("autoregressive"),
        "pld": AcceptanceRow("pld"),
        "anpd, as published (a chain of 6)": anpd(AnpdConfig.paper()),
        "anpd, a chain of 16": anpd(replace(AnpdConfig.paper(), draft_tokens=16)),
        "anpd": AcceptanceRow("anpd"),
        "anpd, 16 nodes": AcceptanceRow("anpd", max_nodes=16),
        "lookahead, as published": lookahead(),
        "+ prompt": lookahead(learn_from_prompt=True),
        "+ output": lookahead(learn_from_output=True),
        "+ prompt and output": lookahead(learn_from_prompt=True, learn_from_output=True),
        "lookahead": AcceptanceRow("lookahead"),
        "lookahead, 16 nodes": AcceptanceRow("lookahead", max_nodes=16),
        "anpd+lookahead": AcceptanceRow("anpd+lookahead"),
        "spectra-core": AcceptanceRow("spectra-core"),
        "spectra-core, 16 nodes": AcceptanceRow("spectra-core", max_nodes=16),
    }


def retrieval_rows(library: Library) -> dict[str, AcceptanceRow]:
    """The two parts of SPECTRA, the ways they can share a tree, and rest, with guesses counted by dictionary."""
    labelled = SpectraCoreConfig(label_dictionaries=True)
    ours = SpeculatorOptions(retrieval=lambda: library).with_settings(labelled)

    def spectra(config: SpectraConfig, max_nodes: int = DEFAULT_NODES) -> AcceptanceRow:
        return AcceptanceRow("spectra", None, max_nodes, ours.with_settings(config))

    priority, unreserved, flat = SpectraConfig(), SpectraConfig(reserve=0), SpectraConfig("paper")
    both, three = "suffix+token-recycling", "suffix+token-recycling+spectra-retrieval"
    apart = ours.with_settings(SpectraRetrievalConfig(mode="apart"))
    return {
        "autoregressive": AcceptanceRow("autoregressive"),
        "spectra-core": AcceptanceRow("spectra-core", options=ours),
        "rest": AcceptanceRow("rest", options=ours),
        "spectra-retrieval": AcceptanceRow("spectra-retrieval", options=ours),
        "spectra, priority": spectra(priority),
        "spectra, priority, no reserve": spectra(unreserved),
        "spectra, paper's order": spectra(flat),
        "spectra-core+spectra-retrieval": AcceptanceRow("spectra-core+spectra-retrieval", options=ours),
        "spectra-core, 16 nodes": AcceptanceRow("spectra-core", None, 16, ours),
        "spectra, priority, 16 nodes": spectra(priority, 16),
        "spectra, priority, no reserve, 16 nodes": spectra(unreserved, 16),
        "spectra, paper's order, 16 nodes": spectra(flat, 16),
        both: AcceptanceRow(both),
        three: AcceptanceRow(three, options=ours),
        f"{three}, apart": AcceptanceRow(three, options=apart),
        f"{three}, 16 nodes": AcceptanceRow(three, None, 16, ours),
        f"{three}, apart, 16 nodes": AcceptanceRow(three, None, 16, apart),
    }


def pld_plus_rows(n_layers: int, heads: Heads) -> dict[str, AcceptanceRow]:
    """PLD+ by hidden states (h) and by attention of induction heads (a), as published and by our defaults."""
    layer = paper_layer(n_layers)
    paper, ours = PldPlusConfig.paper(layer, heads), PldPlusConfig(layer=layer, heads=heads)

    def plus(method: str, config: PldPlusConfig, max_nodes: int = DEFAULT_NODES) -> AcceptanceRow:
        return AcceptanceRow(method, None, max_nodes, SpeculatorOptions(layer=layer, heads=heads).with_settings(config))

    return {
        "autoregressive": AcceptanceRow("autoregressive"),
        "pld": AcceptanceRow("pld"),
        "pld-plus-h, as published": plus("pld-plus-h", paper),
        "pld-plus-a, as published": plus("pld-plus-a", paper),
        "pld-plus-h, as published, projected": plus("pld-plus-h", replace(paper, dims=ours.dims)),
        "pld-plus-h": plus("pld-plus-h", ours),
        "pld-plus-a": plus("pld-plus-a", ours),
        "pld-plus-h, 16 nodes": plus("pld-plus-h", ours, 16),
    }


def peers_rows(n_layers: int) -> dict[str, AcceptanceRow]:
    """Training-free methods of others beside ours, at equal nodes."""
    ours = SpeculatorOptions(layer=paper_layer(n_layers))
    known = ours.with_settings(StandConfig(noise="target"))
    lookup = ours.with_settings(AdaPldConfig(branches=0, ngram_min=2))
    both = "suffix+token-recycling"
    methods = {"pld": ours, "suffix": ours, "goose": ours, "adapld": ours, "stand": ours, both: ours}
    table = {"autoregressive": AcceptanceRow("autoregressive")}
    for nodes in (64, 16):
        for method, options in methods.items():
            table[f"{method}, {nodes} nodes"] = AcceptanceRow(method, None, nodes, options)
        table[f"stand, the target's noise, {nodes} nodes"] = AcceptanceRow("stand", None, nodes, known)
        for method in ("goose", "stand", both):
            table[f"{method}, {nodes} nodes, warm"] = AcceptanceRow(method, None, nodes, warmed(ours), warm=True)
        for part in ("goose", "adapld", "stand"):
            table[f"{both}+{part}, {nodes} nodes"] = AcceptanceRow(f"{both}+{part}", None, nodes, ours)
        table[f"{both}+adapld without branches, {nodes} nodes"] = AcceptanceRow(f"{both}+adapld", None, nodes, lookup)
    return table


def trained_rows(method: str, vocabulary: VocabularyRows) -> dict[str, AcceptanceRow]:
    """A trained drafter's method, the mixed model, and both."""
    options = SpeculatorOptions(trained=method, vocabulary=vocabulary)
    both = "suffix+token-recycling"
    return {
        "autoregressive": AcceptanceRow("autoregressive"),
        **{f"{method}, {n} nodes": AcceptanceRow(method, max_nodes=n, options=options) for n in (5, 16, 64)},
        both: AcceptanceRow(both, options=options),
        f"{both}+{method}": AcceptanceRow(f"{both}+{method}", options=options),
        f"{both}+{method}, 16 nodes": AcceptanceRow(f"{both}+{method}", max_nodes=16, options=options),
    }


def draft_rows(path: Path) -> dict[str, AcceptanceRow]:
    """draft-model with the small model in ``path``: chains, trees, and what lookup adds to them."""

    def drafting(n_nodes: int, k: int = 5, method: str = "draft-model", **changes: Any) -> AcceptanceRow:
        config = DraftModelConfig(draft_tokens=k, tree_nodes=n_nodes, **changes)
        return AcceptanceRow(method, options=SpeculatorOptions(draft_model=str(path)).with_settings(config))

    return {
        "draft-model, chain of 5": drafting(0),
        "draft-model, chain of 10": drafting(0, 10),
        "draft-model, tree of 5": drafting(5),
        "draft-model, tree of 10": drafting(10),
        "draft-model, tree of 16": drafting(16),
        "draft-model, tree of 16, beam 4": drafting(16, tree_beam=4),
        "draft-model, tree of 32": drafting(32),
        "draft-model, tree of 64": drafting(64),
        "draft-model, tree of 64, 8 deep": drafting(64, 8),
        "draft-model+pld, tree of 16": drafting(16, method="draft-model+pld"),
    }
