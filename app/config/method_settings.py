"""Settings of the methods: keys and values of a configuration become the dataclasses that the methods read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import msgspec

from speculators.auto.config import AutoConfig
from speculators.corpus.rest import RestConfig
from speculators.draft_model.config import DraftModelConfig
from speculators.mixing.combined import CombinationConfig
from speculators.ngrams.anpd import AnpdConfig
from speculators.ngrams.lookahead import LookaheadConfig
from speculators.ngrams.pld import PldConfig
from speculators.ngrams.suffix import SuffixConfig
from speculators.peers.adapld import AdaPldConfig
from speculators.peers.goose import GooseConfig
from speculators.peers.stand import StandConfig
from speculators.pld_plus.speculator import PldPlusConfig
from speculators.prediction.config import PredictionConfig
from speculators.spectra.core import SpectraCoreConfig
from speculators.spectra.retrieval import SpectraRetrievalConfig
from speculators.spectra.speculator import SpectraConfig
from speculators.successors.config import SuccessorConfig
from speculators.successors.token_recycling import TokenRecyclingConfig

SECTIONS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "draft_model_options": DraftModelConfig,
        "adapld": AdaPldConfig,
        "anpd": AnpdConfig,
        "goose": GooseConfig,
        "lookahead": LookaheadConfig,
        "pld": PldConfig,
        "pld_plus": PldPlusConfig,
        "prediction": PredictionConfig,
        "rest": RestConfig,
        "spectra": SpectraConfig,
        "spectra_core": SpectraCoreConfig,
        "spectra_retrieval": SpectraRetrievalConfig,
        "stand": StandConfig,
        "suffix": SuffixConfig,
        "token_recycling": TokenRecyclingConfig,
        "successors": SuccessorConfig,
        "combination": CombinationConfig,
        "auto": AutoConfig,
    }
)
"""Field of ``ServeConfig`` -> the settings it gives."""


def method_settings(section: str, given: Mapping[str, Any]) -> Any:
    """The settings of ``section``, an instance of its class in ``SECTIONS``.

    Raises:
        ValueError: a setting is unknown or has a wrong value; the message names section and setting.
        ConfigError: likewise, where the class itself checks the value.
    """
    kind = SECTIONS[section]
    if section == "spectra_core" and "tau_refine" in given:
        raise ValueError(_about_tau_refine(given["tau_refine"]))
    known = {field.name for field in fields(kind)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise ValueError(f"{section} has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{section}: {error}") from None


def _about_tau_refine(value: Any) -> str:
    """What to give instead of a setting that was read the wrong way round."""
    is_share = isinstance(value, int | float) and 0 <= value <= 1
    same = f"{round(1 - value, 12):g}" if is_share else "1 - tau_refine"
    return (
        "spectra_core has no setting 'tau_refine' any more; explore, the probability of the unseen token, replaces it: "
        f"explore {same} is what tau_refine {value} was, and the paper's threshold of 0.1 is explore 0.1"
    )
