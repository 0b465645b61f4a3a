"""Checks what a configuration names before torch or Ray is loaded, and fixes the commits of models on the hub."""

from __future__ import annotations

from app.composition.operation import access_options, trace_options
from app.composition.speculation import speculator_options
from app.config.errors import config_of
from app.config.serve import ServeConfig
from app.inputs.default_model import NO_DRAFTER
from app.inputs.models import check_model, drafter_path, is_on_hub, texts_path
from app.inputs.simulation import profile_at
from engine.model.resolve import pinned as pinned_model
from engine.model.resolve import revision_of
from speculators.methods import check_name, method_names


def checked(config: ServeConfig) -> ServeConfig:
    """Return the configuration, completed by the profile of ``simulate``, once every name in it was checked.

    Raises:
        ConfigError: a model, profile, drafter, library or key file is not there, or a field does not fit the profile;
            the message names the field or flag.
        UnknownMethodError: the method is unknown or not available.
    """
    method_names(config.method)
    check_model(config.model, config.revision)
    if config.simulate is not None:
        follows = {
            "stages": profile_at(config.simulate).stages,
            "auto": {"sources": ["suffix"]} | config.section("auto").given,  # the default on a simulated target
        }
        config = config_of(follows | config.model_dump(exclude={"auto"}, exclude_unset=True))
    for source in config.section("auto").given.get("sources", ()):
        check_name(source)
    access_options(config)
    speculator_options(config)
    trace_options(config)
    return config


def pinned(config: ServeConfig) -> ServeConfig:
    """Return the configuration with the current commits of models on the hub. Fetches no weights.

    Every process then reads the same commit, also one that restarts after the hub has a newer one.
    """
    found: dict[str, str] = {}
    commit = revision_of(texts_path(config.model, config.revision))
    if commit and is_on_hub(config.model):
        found["revision"] = commit
    for field, named in (("drafter", config.drafter), ("draft_model", config.draft_model)):
        if named is not None and (field, named) != ("drafter", NO_DRAFTER):
            found[field] = pinned_model(drafter_path(named))
    return config.model_copy(update=found)
