"""From a configuration to what the pages for people show, and what may be done there."""

from __future__ import annotations

from app.config.serve import ServeConfig
from app.inputs.default_model import DEFAULT_MODEL
from app.playground.options import PlaygroundOptions, Victim


def playground_options(config: ServeConfig, *, is_private: bool) -> PlaygroundOptions | None:
    """What an ingress replica shows; None: no page.

    Args:
        is_private: only this machine's users reach its HTTP port, and its Ray is its own.
    """
    if not config.playground:
        return None
    is_default = config.model == DEFAULT_MODEL
    is_open = config.api_keys is None and config.tenant_header is None and not config.origins
    is_one = config.ingress_replicas == config.most_pipelines == 1  # a token is of one process
    may_kill = is_default and is_private and is_open and is_one
    return PlaygroundOptions(is_default, _victims(config) if may_kill else ())


def _victims(config: ServeConfig) -> tuple[Victim, ...]:
    return (
        Victim("router"),
        *(Victim("stage", place) for place in range(config.stages)),
        *(Victim("speculator", place) for place in range(config.speculator_actors)),
    )
