"""From a configuration to the settings of the methods, and where they run. Functions that read the model load torch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from app.composition.operation import log_options
from app.composition.pipeline import target_options, trained_drafter
from app.composition.retrieval import lookup
from app.config.method_fields import SECTIONS
from app.config.serve import ServeConfig
from app.inputs.models import drafter_path, model_path, target_name, texts_path
from deployments.options import SpeculatorPlacement
from engine.model.spec import ModelSpec
from speculators.auto.config import AutoConfig
from speculators.draft_model.config import DraftModelConfig
from speculators.grammar import GrammarConfig
from speculators.method import SpeculatorOptions
from speculators.pld_plus.speculator import PldPlusConfig


def placement(config: ServeConfig) -> SpeculatorPlacement:
    """Where speculators run."""
    return SpeculatorPlacement(
        config.speculator_actors, config.draft_timeout, config.speculator_gpus, log_options(config)
    )


def speculator_options(config: ServeConfig) -> SpeculatorOptions:
    """Settings of the methods, without the layers and heads of the model, which ``served_speculators`` adds.

    Raises:
        ConfigError: there is nothing where ``retrieval`` points.
    """
    given = [config.section(name) for name in SECTIONS]
    # The built-in texts are examples that hold little of what is asked: auto would lose time with them.
    looks_up = {"retrieval": config.retrieval is not None} | config.section("auto").given
    return SpeculatorOptions(
        settings=tuple(section.settings() for section in given if section.given),
        retrieval=lookup(config),
        draft_model=None if config.draft_model is None else drafter_path(config.draft_model),
    ).with_settings(DraftModelConfig(**config.draft_model_settings), AutoConfig(**looks_up))


def served_speculators(config: ServeConfig) -> SpeculatorOptions:
    """Settings of the methods of a server, the model's part included; looks for heads if its own method needs them.

    Reads the model's configuration, and its weights only where heads are looked for. The router adds what the target
    says of its trained drafter.

    Raises:
        ConfigError: the heads file is broken or of another model, or no heads can be found.
        UnsupportedModelError: the model cannot be run.
    """
    from app.speculation.heads import ensure_heads, known_heads, names_method, with_model
    from app.speculation.vocabulary import known_rows
    from engine.model.loader import load_spec
    from engine.target_model.local import LocalTarget

    path = texts_path(config.model, config.revision)
    spec = load_spec(path)
    tokens = GrammarConfig(target_name(config.model), config.revision, tuple(spec.eos_ids), spec.vocab_size)
    options = replace(speculator_options(config), vocabulary=known_rows(path, spec), grammar=tokens)
    file = None if config.heads is None else Path(config.heads)
    if configured := options.settings_of(PldPlusConfig).heads:
        return with_model(options, spec, configured)
    if names_method(config.method):
        # One process and no pipeline: before the deployment there is nothing else.
        target = replace(target_options(config), stages=1)
        whole = partial(model_path, config.model, config.revision)
        heads = ensure_heads(path, spec, file, lambda: LocalTarget.load(target, whole()))
    else:
        heads = known_heads(path, spec, file)
    return with_model(options, spec, heads)


def trained_method(config: ServeConfig, spec: ModelSpec) -> str | None:
    """The method of the target's trained drafter, whose weights are read; None: it has none."""
    from engine.target_model.drafter import read_checkpoint

    settings = trained_drafter(config)
    return None if settings is None else read_checkpoint(settings, spec).spec.method


def check_served_drafter(config: ServeConfig) -> None:
    """Refuse a drafter that cannot draft for the target. Reads the configurations and tokenizers of both models.

    Raises:
        ConfigError: there is no such model, or it has another tokenizer than the target.
        UnsupportedModelError: a model cannot be run.
    """
    if config.draft_model is not None:
        from app.speculation.drafter import check_drafter
        from engine.model.loader import load_spec

        path = texts_path(config.model, config.revision)
        check_drafter(drafter_path(config.draft_model), path, load_spec(path))
