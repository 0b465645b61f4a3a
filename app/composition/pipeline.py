"""Builds the options of stages and router from a configuration."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from app.composition.operation import log_options, trace_options
from app.config.serve import ServeConfig, stage_memory
from app.inputs.default_model import DRAFTER, DRAFTER_METHOD, NO_DRAFTER, is_default
from app.inputs.devices import AUTO
from app.inputs.models import drafter_path, is_on_hub, target_name, texts_path
from app.inputs.simulation import profile_at, simulation_of
from app.version import SOFTWARE
from deployments.options import PipelineOptions, RouterOptions, ScalingOptions
from engine.drafter.settings import DrafterSettings
from engine.errors import ConfigError
from engine.model.resolve import is_local
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.options import GIB, TargetOptions
from speculators.methods import normalised

# Two forward passes: on a CPU, further ones take longer than they save.
DEFAULT_DRAFTER = DrafterSettings(str(DRAFTER), depth=2, beam=4)


def trained_drafter(config: ServeConfig) -> DrafterSettings | None:
    """Return the settings of the trained drafter with the path of its files; None: there is none.

    Raises ConfigError if there are options for a drafter but no drafter.
    """
    options = config.drafter_options
    if has_default_drafter(config):
        given = {name: getattr(options, name) for name in ("depth", "beam") if name in options.model_fields_set}
        return replace(DEFAULT_DRAFTER, **given)
    if config.drafter not in (None, NO_DRAFTER):
        return DrafterSettings(drafter_path(config.drafter), options.layers, options.depth, options.beam)
    if options.model_fields_set:
        raise ConfigError("drafter_options is given, but there is no drafter; name a drafter")
    return None


def has_default_drafter(config: ServeConfig) -> bool:
    """Return whether the bundled drafter drafts: for the bundled model, with ``auto`` or the drafter's own method."""
    methods = {"auto", DRAFTER_METHOD}.intersection(normalised(config.method).split("+"))
    is_asked = config.drafter is None and config.simulate is None and not config.section("auto").given.get("sources")
    return bool(methods) and is_asked and is_default(config.model) and is_local(target_name(config.model))


def target_options(config: ServeConfig) -> TargetOptions:
    """Return how stages load and run the target, with the recorded answers of a simulated one as tokens.

    Raises ConfigError if its profile or the recorded answers cannot be used.
    """
    simulation = None
    if config.simulate is not None:
        simulation = simulation_of(config.simulate, config.simulate_answers, target_name(config.model), config.revision)
    return TargetOptions(
        model=target_name(config.model),
        stages=config.stages,
        tensor_parallel=config.tensor_parallel,
        dtype=config.dtype,
        device=config.stage_device,
        kv_bytes=None if config.kv_gib == AUTO else int(config.kv_gib * GIB),
        step_rows=config.max_step_rows,
        max_model_len=config.max_model_len,
        quantization=config.quantization,
        numerics=config.numerics,
        split=config.layer_split,
        stage_memory=stage_memory(config.stage_memory_gib),
        cost_folder="layer-costs",
        simulation=simulation,
        drafter=trained_drafter(config),
        revision=config.revision,
    )


def pipeline_options(config: ServeConfig) -> PipelineOptions:
    return PipelineOptions(
        cpus=config.stage_cpus,
        gpus=config.stage_gpus,
        threads=config.stage_threads,
        transport=config.transport,
        placement=config.stage_placement,
        stage_timeout=config.stage_timeout,
        logs=log_options(config),
        grace=config.grace,
        standby_stages=config.standby_stages,
    )


def aliases(config: ServeConfig) -> tuple[str, ...]:
    """Return the names of the model in addition to the first: other configured names, and its hub id."""
    names, model = config.served_names, target_name(config.model)
    return names[1:] + ((model,) if is_on_hub(model) and model not in names else ())


def router_options(config: ServeConfig) -> RouterOptions:
    """Return defaults and limits of the router, and the name of its file of step times."""
    from app.speculation.step_costs import costs_name, layout_of

    place = "served"
    if config.simulate is not None:  # each profile has its own step times
        place = f"simulated-{hashlib.sha256(repr(profile_at(config.simulate)).encode()).hexdigest()[:12]}"
    path = texts_path(config.model, config.revision)
    return RouterOptions(
        model=config.served_name,
        method=normalised(config.method),
        methods=config.allowed_methods,
        max_nodes=config.draft_nodes,
        fits_nodes=config.max_nodes is None and config.stage_device == "cpu" and config.simulate is None,
        limit_nodes=max(config.draft_nodes, 256),
        cost_file=costs_name(path, config.stage_device, layout_of(config, config.stage_threads), config.kv_gib, place),
        shared_namespace=config.retrieval_namespace,
        max_wait=config.max_wait,
        affinity=config.affinity,
        failover=config.failover,
        step_deadline=config.step_deadline,
        software=SOFTWARE,
        logs=log_options(config),
        grace=config.grace,
        traces=trace_options(config),
        scaling=ScalingOptions(
            config.least_pipelines,
            config.most_pipelines,
            config.scale_up_delay,
            config.scale_down_delay,
        ),
        scheduler=SchedulerOptions(
            max_sequences=config.max_sequences,
            max_waiting=config.max_waiting,
            max_step_rows=config.max_step_rows,
            n_micro_batches=config.stages,
            max_stall=config.max_stall,
            prefix_cache=config.prefix_cache,
        ),
    )
