"""What a configuration names is looked at before torch or Ray is loaded."""

from __future__ import annotations

from app.composition.operation import access_options, trace_options
from app.composition.speculation import speculator_options
from app.config.errors import config_of
from app.config.serve import ServeConfig
from app.inputs.models import check_model, is_on_hub, model_path
from app.inputs.simulation import profile_at
from engine.model.resolve import revision_of
from speculators.methods import method_names

TEXT_SOURCES = ["suffix"]  # what auto chooses from on a simulated target unless told otherwise


def checked(config: ServeConfig) -> ServeConfig:
    """The configuration with what follows from the profile of ``simulate``; every name in it has been looked at.

    Raises:
        ConfigError: a model, profile, drafter, library or file of keys is not there, or a field does not fit the
            profile; the message names the field or flag.
        UnknownMethodError: the method is unknown or not available yet.
    """
    method_names(config.method)
    check_model(config.model, config.revision)
    if config.simulate is not None:
        follows = {"stages": profile_at(config.simulate).stages, "auto": {"sources": TEXT_SOURCES} | config.auto}
        config = config_of(follows | config.model_dump(exclude={"auto"}, exclude_unset=True))
    access_options(config)
    speculator_options(config)
    trace_options(config)
    return config


def pinned(config: ServeConfig) -> ServeConfig:
    """The configuration with the commit that a model on the hub is at now: all processes read that one, also those that
    are replaced after the hub has a newer one. Fetches the model.

    Raises:
        ConfigError: there is no such model or revision.
    """
    commit = revision_of(model_path(config.model, config.revision))
    return config.model_copy(update={"revision": commit}) if commit and is_on_hub(config.model) else config
