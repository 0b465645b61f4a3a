"""SPECTRA-RETRIEVAL: text that the target itself finds likely (SPECTRA, Le et al., 2025, section 4.2.2).

Asked like ``rest``, with suffixes of 8 tokens down to 1. What makes the method is the corpus: texts of low perplexity
under the target, chosen offline (``spectra corpus build``). The paper does not print how many continuations it
takes, nor their length; ``SpectraRetrievalConfig.paper`` takes REST's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from engine.errors import ConfigError
from retrieval_store.index.index import Library
from speculators.corpus.lookup import LibraryDrafter, LookupConfig


@dataclass(frozen=True, slots=True)
class SpectraRetrievalConfig(LookupConfig):
    """SPECTRA-RETRIEVAL settings; ``paper`` gives the published method."""

    method: ClassVar[str] = "spectra-retrieval"

    mode: Literal["mixed", "apart"] = "mixed"  # with suffix or token-recycling: part of their model, or a source apart
    draft_tokens: int = 6

    def __post_init__(self) -> None:
        LookupConfig.__post_init__(self)
        if self.mode not in ("mixed", "apart"):
            raise ConfigError(f"{self.method}: mode must be mixed or apart, got {self.mode!r}")

    @classmethod
    def paper(cls) -> SpectraRetrievalConfig:
        """Suffixes of 8 to 1 tokens, the first length with a hit provides the whole draft, nodes by count."""
        return cls(mode="apart", samples=5000, draft_tokens=10, fill=False, prior=0.0)


class SpectraRetrieval(LibraryDrafter):
    """The method.

    Args:
        library: of refined text.
        config: settings.
    """

    def __init__(self, library: Library, config: SpectraRetrievalConfig | None = None) -> None:
        super().__init__("spectra-retrieval", library, config or SpectraRetrievalConfig())
