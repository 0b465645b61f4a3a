"""REST: drafts what followed the same words in a corpus (He et al. 2023, arXiv 2311.08252).

The published method (``RestConfig.paper``) looks up suffixes of 16 down to 2 tokens, and the first length with a hit
provides the whole draft. A long match has few occurrences, so most of the budget is left. Here what follows the last
token alone fills it, and scores are lower for few occurrences and short matches. On real answers, the continuation of a
single occurrence is right one time in three after two matching tokens, and two times in three after eight.
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
