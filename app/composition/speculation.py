"""Builds the settings of drafting methods, and where they run, from a configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.composition.operation import log_options
from app.composition.pipeline import has_default_drafter, target_options, trained_drafter
from app.composition.retrieval import lookup
from app.config.method_fields import SECTIONS
from app.config.serve import ServeConfig
from app.inputs.checked_checkpoints import spec_of
from app.inputs.default_model import DRAFTER_METHOD
from app.inputs.models import drafter_path, model_path, target_name, texts_path
from deployments.options import SpeculatorPlacement
from engine.model.spec import ModelSpec
from speculators.auto.config import AutoConfig
from speculators.draft_model.config import DraftModelConfig
from speculators.grammar import GrammarConfig
from speculators.method import SpeculatorOptions
from speculators.pld_plus.speculator import PldPlusConfig

if TYPE_CHECKING:
    from engine.target_model.local import LocalTarget


def placement(config: ServeConfig) -> SpeculatorPlacement:
    return SpeculatorPlacement(
        config.speculator_actors, config.draft_timeout, config.speculator_gpus, log_options(config)
    )


def speculator_options(config: ServeConfig) -> SpeculatorOptions:
    """Return the settings of the methods, without what ``served_speculators`` reads from the model."""
    given = [config.section(name) for name in SECTIONS]
    # auto looks up only texts that were named: requests rarely repeat the built-in ones, and a lookup takes time.
    looks_up = {"retrieval": config.retrieval is not None} | config.section("auto").given
    return SpeculatorOptions(
        settings=tuple(section.settings() for section in given if section.given),
        retrieval=lookup(config),
        draft_model=None if config.draft_model is None else drafter_path(config.draft_model),
    ).with_settings(DraftModelConfig(**config.draft_model_settings), AutoConfig(**looks_up))


def served_speculators(config: ServeConfig) -> SpeculatorOptions:
    """Return the settings of a server's methods, its model's layers, heads and vocabulary rows included.

    Reads the model's weights only to find heads, if the server's own method needs heads that are not known yet. The
    router adds what the target reports of its trained drafter. Raises ConfigError if the heads file is broken or of
    another model, or no heads are found, UnsupportedModelError if the model cannot be run.
    """
    from app.speculation.heads import model_heads, names_method, with_model
    from app.speculation.vocabulary import known_rows

    path = texts_path(config.model, config.revision)
    spec = spec_of(path)
    tokens = GrammarConfig(target_name(config.model), config.revision, tuple(spec.eos_ids), spec.vocab_size)
    options = replace(speculator_options(config), vocabulary=known_rows(path, spec), grammar=tokens)
    if configured := options.settings_of(PldPlusConfig).heads:
        return with_model(options, spec, configured)

    def load() -> LocalTarget:
        from engine.target_model.local import LocalTarget  # loads torch

        # In this process: no pipeline is deployed yet.
        whole = replace(target_options(config), stages=1, tensor_parallel=1)
        return LocalTarget.load(whole, model_path(config.model, config.revision))

    file = None if config.heads is None else Path(config.heads)
    return with_model(options, spec, model_heads(path, spec, file, load if names_method([config.method]) else None))


def trained_method(config: ServeConfig, spec: ModelSpec) -> str | None:
    """Return the method of the target's trained drafter, read from its checkpoint; None: there is no drafter."""
    settings = trained_drafter(config)
    if settings is None:
        return None
    if has_default_drafter(config):
        return DRAFTER_METHOD
    from engine.target_model.drafter import read_checkpoint  # loads torch

    return read_checkpoint(settings, spec).spec.method


def check_served_drafter(config: ServeConfig) -> None:
    """Refuse a draft model that cannot draft for the target, as ``check_drafter`` does."""
    if config.draft_model is not None:
        from app.speculation.drafter import check_drafter

        path = texts_path(config.model, config.revision)
        check_drafter(drafter_path(config.draft_model), path, spec_of(path))
