"""Settings of ``auto``."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError
from speculators.settings import Settings, setting


@dataclass(frozen=True, slots=True)
class AutoConfig(Settings):
    """Settings of ``auto``."""

    sources: tuple[str, ...] = setting((), "methods to choose from; by default the usual ones that have what they need")
    retrieval: bool = setting(True, "whether spectra-retrieval is a source by default, if there are texts to look up")
    longest_pause: int = setting(64, "most steps without a draft after repeated failures of cheap sources", at_least=1)
    overhead: float = setting(0.01, "share of a request's time that failed drafts may take", above=0, at_most=1)
    reserve: int = setting(8, "nodes to ask for in addition to the number that was worth it recently", at_least=1)
    margin: float = setting(0.03, "share of tokens per second that a draft must promise to add", at_least=0, below=1)

    def check(self) -> None:
        if "auto" in self.sources:
            raise ConfigError(f"sources is {self.sources!r}; it must not contain 'auto'")
