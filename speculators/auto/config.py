"""Settings of ``auto``, and the sources that it has by default."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError
from speculators.method import SpeculatorOptions
from speculators.settings import Settings, setting


@dataclass(frozen=True, slots=True)
class AutoConfig(Settings):
    """Settings of ``auto``."""

    sources: tuple[str, ...] = setting((), "methods to choose from; by default the usual ones that have what they need")
    retrieval: bool = setting(True, "whether spectra-retrieval is a source by default, if there are texts to look up")
    loss: float = setting(0.01, "share of the time that drafting may lose to plain decoding", above=0, at_most=1)

    def check(self) -> None:
        if "auto" in self.sources:
            raise ConfigError(f"sources is {self.sources!r}; it must not contain 'auto'")


def source_names(settings: AutoConfig, options: SpeculatorOptions) -> list[str]:
    """Return the configured sources; by default suffix, token-recycling, pld and those that have what they need."""
    names = list(settings.sources)
    if not names:
        names += ["suffix", "token-recycling"]
        names += ["draft-model"] if options.draft_model is not None else []
        names += [options.trained] if options.trained is not None else []
        names += ["spectra-retrieval"] if options.retrieval is not None and settings.retrieval else []
        names += ["pld"]
        names += ["grammar"] if options.grammar is not None else []
    return names if "prediction" in names else [*names, "prediction"]
