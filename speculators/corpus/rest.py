"""REST: what followed the same words in a corpus (He et al. 2023, arXiv 2311.08252).

As published (``RestConfig.paper``) suffixes of 16 down to 2 tokens count and the first length with a hit provides the
whole draft. Ours differs in two ways. A long match has few occurrences, often one, and leaves most of the budget
unused: the rest is filled with what follows the last token alone, anywhere in the corpus. And the estimates that
combinations choose nodes by are not plain shares: ``count / total`` is trusted less the fewer occurrences it rests on
and the fewer tokens matched (on real answers, one occurrence behind two matching tokens is right one time in three,
behind eight two times in three), and what fills up only gets what the longer match leaves.

The corpus is a ``Library`` (``retrieval_store``): for this method of unrefined text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from retrieval_store.index.index import Library
from speculators.corpus.lookup import LibraryDrafter, LookupConfig
from speculators.method import Method


@dataclass(frozen=True, slots=True)
class RestConfig(LookupConfig):
    """REST settings; ``paper`` gives the published ones."""

    method: ClassVar[str] = "rest"

    suffix_max: int = 16

    @classmethod
    def paper(cls) -> RestConfig:
        """As published: suffixes of 16 to 2 tokens, 5,000 continuations, one match, nodes by count."""
        return cls(suffix_min=2, samples=5000, fill=False, prior=0.0)


class Rest(LibraryDrafter):
    """The method.

    Args:
        library: of the corpus.
        config: settings.
    """

    def __init__(self, library: Library, config: RestConfig | None = None) -> None:
        super().__init__("rest", library, config or RestConfig())


REST = Method(
    name="rest",
    factory=lambda settings, context: Rest(context.options.retrieval(), settings),
    description="continuations of the longest match in a corpus",
    settings=RestConfig,
    needs=("retrieval",),
)
