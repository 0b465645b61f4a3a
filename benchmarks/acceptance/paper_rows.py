"""The rows of SPECTRA's own tables (Le et al., 2025, tables 1 to 6) that ``benchmarks.acceptance`` can measure.

Every method as published, with 128 nodes where probes take some, so that nothing has to be cut. The paper's refine
threshold can be read in two ways: ``explore`` 0.1 is ours, 0.9 what its text says literally; 0 leaves exploring out.
The rows without the perplexity refinement are the same ones with an unrefined corpus.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.acceptance.runs import AcceptanceRow
from retrieval_store.index.index import Library
from speculators.corpus.rest import RestConfig
from speculators.method import SpeculatorOptions
from speculators.ngrams.anpd import AnpdConfig
from speculators.ngrams.lookahead import LookaheadConfig
from speculators.spectra.core import SpectraCoreConfig
from speculators.spectra.retrieval import SpectraRetrievalConfig
from speculators.spectra.speculator import SpectraConfig

READINGS = {"": 0.1, ", explore 0": 0.0, ", explore 0.9": 0.9}  # end of a label -> explore
NODES = 128


def paper_rows(library: Library) -> dict[str, AcceptanceRow]:
    """Baselines, SPECTRA and its ablations; guesses are counted by dictionary (figure 3)."""
    core_settings = replace(SpectraCoreConfig.paper(), label_dictionaries=True)
    published = SpeculatorOptions(retrieval=lambda: library).with_settings(
        AnpdConfig.paper(),
        LookaheadConfig.paper(),
        RestConfig.paper(),
        SpectraRetrievalConfig.paper(),
        SpectraConfig("paper"),
    )

    def row(method: str, max_nodes: int = NODES, **core: float | bool) -> AcceptanceRow:
        settings = replace(core_settings, **core)  # type: ignore[arg-type]  # fields of either type
        return AcceptanceRow(method, published.with_settings(settings), max_nodes)

    rows = {
        "anpd": row("anpd"),
        "lookahead": row("lookahead"),
        "rest": row("rest", 64),
        "lookahead+rest": row("lookahead+rest"),
        "spectra-retrieval": row("spectra-retrieval", 64),
    }
    for reading, explore in READINGS.items():
        rows |= {
            f"spectra-core{reading}": row("spectra-core", explore=explore),
            f"w/o forward dict{reading}": row("spectra-core", explore=explore, use_forward=False),
            f"w/o backward dict{reading}": row("spectra-core", explore=explore, use_backward=False),
            f"w/o sub-n-grams{reading}": row("spectra-core", explore=explore, use_sub_ngrams=False),
            f"spectra{reading}": row("spectra", explore=explore),
        }
    return rows
