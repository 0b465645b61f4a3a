"""REST (He et al. 2023, arXiv 2311.08252): drafts what followed the same words in a corpus.

In the published method, the first suffix length with a hit provides the whole draft. Here what follows the last token
alone fills the rest of the budget, and scores are lower for few occurrences and short matches.
"""

from __future__ import annotations

from dataclasses import dataclass

from retrieval_store.index.index import Library
from speculators.corpus.lookup import LibraryDrafter, LookupConfig
from speculators.method import Method
from speculators.settings import setting


@dataclass(frozen=True, slots=True)
class RestConfig(LookupConfig):
    """REST settings; ``RestConfig.paper()`` is the published method."""

    suffix_max: int = setting(16, "tokens of the longest suffix looked up", at_least=1, at_most=16)

    @classmethod
    def paper(cls) -> RestConfig:
        return cls(suffix_min=2, samples=5000, fill=False, prior=0.0)


class Rest(LibraryDrafter):
    """REST over the texts of a library."""

    def __init__(self, library: Library, config: RestConfig | None = None) -> None:
        super().__init__("rest", library, config or RestConfig())


REST = Method(
    name="rest",
    factory=lambda settings, context: Rest(context.library(), settings),
    description="what followed the longest match of the last tokens in a corpus",
    source="arXiv 2311.08252",
    settings=RestConfig,
    needs=("retrieval",),
)
