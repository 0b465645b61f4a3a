"""SPECTRA-RETRIEVAL: drafts from texts that the target itself finds likely (SPECTRA, Le et al., 2025, section 4.2.2).

It searches like ``rest``, with suffixes of 8 tokens down to 1. Its corpus has texts of low perplexity under the target,
which ``spectra corpus build`` selects. The paper gives neither the number of continuations nor their length;
``SpectraRetrievalConfig.paper`` uses those of REST.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from retrieval_store.index.index import Library
from speculators.corpus.lookup import LibraryDrafter, LookupConfig
from speculators.method import Method
from speculators.settings import setting


@dataclass(frozen=True, slots=True)
class SpectraRetrievalConfig(LookupConfig):
    """Settings of SPECTRA-RETRIEVAL."""

    mode: Literal["mixed", "apart"] = setting(
        "mixed", "with suffix or token-recycling: part of their model, or a source of its own"
    )
    draft_tokens: int = setting(6, "tokens of a continuation", at_least=1, at_most=16)

    @classmethod
    def paper(cls) -> SpectraRetrievalConfig:
        """Return the published method: suffixes of 8 to 1 tokens; the first length with a hit gives the whole draft."""
        return cls(mode="apart", samples=5000, draft_tokens=10, fill=False, prior=0.0)


class SpectraRetrieval(LibraryDrafter):
    """Drafts the most frequent continuations in a library of refined text."""

    def __init__(self, library: Library, config: SpectraRetrievalConfig | None = None) -> None:
        super().__init__("spectra-retrieval", library, config or SpectraRetrievalConfig())


SPECTRA_RETRIEVAL = Method(
    name="spectra-retrieval",
    factory=lambda settings, context: SpectraRetrieval(context.library(), settings),
    description="copies what follows the longest match in texts that the target finds likely",
    source="SPECTRA, Le et al., 2025, section 4.2.2",
    settings=SpectraRetrievalConfig,
    needs=("retrieval",),
)
