"""Checks of ``spectra serve`` before it deploys, so that a mistake is reported in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from app.composition.retrieval import watched_store
from app.config.serve import ServeConfig
from app.inputs.libraries import FLAG
from app.inputs.stores import open_store_at
from app.serving.ray_session import n_gpus
from engine.errors import ConfigError
from retrieval_store.errors import StoreUnavailableError
from retrieval_store.stores.open import shown


def check_model(config: ServeConfig, *, is_local: bool) -> None:
    """Check the model and all that it is configured with; else a replica would fail, which Serve restarts three times.

    If all stages run on this machine (``is_local``), it reads all weights; else each node fetches its own. Raises
    ConfigError if model, drafter or library are missing or do not fit, UnsupportedModelError if one cannot be loaded.
    """
    from app.composition.pipeline import has_default_drafter, target_options
    from app.composition.retrieval import library
    from app.composition.sampling import sampling_defaults
    from app.composition.speculation import check_served_drafter, served_speculators, trained_method
    from app.inputs.checked_checkpoints import checked_spec
    from app.inputs.libraries import prepare
    from app.inputs.models import check_stages, check_tensor_parallel
    from engine.model.resolve import resolve
    from engine.scheduling.request_validation import check_needs
    from engine.target_model.fetching import texts_of
    from engine.target_model.info import plan_cache, simulated_spec
    from engine.target_model.options import ANY, CPU_CACHE, dtype_name, item_bytes
    from speculators.registry import create

    target = target_options(config)
    reads = is_local and target.simulation is None  # else other nodes read the weights
    path = resolve(target.model, target.revision) if reads else texts_of(target)
    spec = simulated_spec(checked_spec(path, has_weights=reads), target)
    sampling_defaults(config)
    check_stages(spec, target.stages)
    check_tensor_parallel(spec, target)
    prepare(library(config))
    speculators = served_speculators(config)
    if is_local:
        room = CPU_CACHE if target.device == "cpu" else ANY  # stages tell what GPUs have left
        target = replace(target, kv_bytes=target.kv_bytes or room)
        if target.drafter is None or has_default_drafter(config):
            plan_cache(spec, target, item_bytes(dtype_name(target.dtype, spec.dtype, target.device)))
        else:
            from engine.target_model.loading import describe_target  # loads torch, to read the drafter

            describe_target(target, path)
        speculators = replace(speculators, trained=trained_method(config, spec))
        check_needs(create(config.method, speculators).needs, spec)
    check_served_drafter(config)


def check_store(config: ServeConfig, say: Callable[[str], None]) -> None:
    """Report a store of ``--retrieval`` that does not answer; the server starts without it, and retries."""
    if where := watched_store(config):
        with closing(open_store_at(where, config.retrieval_namespace, FLAG)) as store:
            try:
                if not store.current().version:
                    where = f"namespace {config.retrieval_namespace} of {shown(where)}"
                    say(f"{FLAG}: {where} has no snapshot yet; --retrieval-namespace names another")
            except StoreUnavailableError as error:
                say(f"{FLAG}: the store does not answer, serving without it until it does: {error}")


def check_gpus(config: ServeConfig, say: Callable[[str], None], *, is_local: bool) -> None:
    """Raise ConfigError if a local Ray has too few GPUs for all stages: Serve would wait for them silently.

    A joined cluster may get more nodes, so there only a report is printed, and only about ``least_pipelines``.
    """
    n = config.most_pipelines if is_local else config.least_pipelines
    needed = n * (config.stages * config.tensor_parallel + config.standby_stages) * config.stage_gpus
    if not needed or needed <= (found := n_gpus()):
        return
    standbys = " and their standbys" if config.standby_stages else ""
    lack = f"--stage-gpus is {config.stage_gpus:g}: the stages{standbys} need {needed:g} GPUs, but Ray has {found:g}"
    if is_local:
        raise ConfigError(lack)
    say(f"{lack}; the application starts once nodes with more have joined")
