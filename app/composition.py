"""From a configuration to the frozen options of the parts: deployments, engine, speculators.

``checked`` comes first and refuses what is wrong before torch or Ray is loaded; functions below that read the
model's own files say so, and load torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.access.key_file import read_records
from app.access.options import AccessOptions
from app.config.checks import stage_memory
from app.config.errors import config_of
from app.config.method_settings import SECTIONS, method_settings
from app.config.serve import ServeConfig
from app.demo.paths import DEMO
from app.inputs.cache import cache_folder
from app.inputs.libraries import FLAG, LibraryAt, builtin_library, checked_place, hash_of, library_at
from app.inputs.models import check_model, drafter_path, is_on_hub, model_path, target_name
from app.inputs.simulation import profile_at, simulation_of
from app.inputs.stores import is_store, open_store_at
from app.version import SOFTWARE
from deployments.observability.logs import LogOptions
from deployments.observability.traces import TraceOptions, can_export
from deployments.options import PipelineOptions, RetrievalOptions, RouterOptions, SpeculatorPlacement
from engine.errors import ConfigError
from engine.model.resolve import revision_of
from engine.scheduling.scheduler import SchedulerOptions
from engine.target.options import GIB, TargetOptions
from retrieval_store.index.index import FixedLibrary, Library
from retrieval_store.service.compaction import Target
from retrieval_store.service.learner import LiveOptions
from speculators.methods import method_names, normalised
from speculators.registry import SpeculatorOptions

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


def target_options(config: ServeConfig) -> TargetOptions:
    """How to load and run the target; recorded answers of a simulated one are tokenised now.

    Raises:
        ConfigError: the profile or the recorded answers of a simulated target cannot be used.
    """
    simulation = None
    if config.simulate is not None:
        simulation = simulation_of(config.simulate, config.simulate_answers, target_name(config.model), config.revision)
    return TargetOptions(
        model=target_name(config.model),
        stages=config.stages,
        dtype=config.dtype,
        device=config.device,
        kv_bytes=int(config.kv_gib * GIB),
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        quantization=config.quantization,
        split=config.layer_split,
        stage_memory=stage_memory(config.stage_memory_gib),
        cost_folder=str(cache_folder() / "layer-costs"),
        simulation=simulation,
        revision=config.revision,
    )


def log_options(config: ServeConfig) -> LogOptions:
    """How every process of the application logs."""
    return LogOptions(config.log_format, config.log_level, config.access_log, config.log_prompts)


def trace_options(config: ServeConfig) -> TraceOptions:
    """Where ingresses and router send the spans of requests.

    Raises:
        ConfigError: they shall, but the exporter is not installed.
    """
    if config.traces and not can_export():
        raise ConfigError("traces (--traces) is true, but there is no exporter: pip install 'spectra-serve[traces]'")
    return TraceOptions(config.traces, config.otlp_endpoint or "")


def pipeline_options(config: ServeConfig) -> PipelineOptions:
    """What a stage gets from the cluster."""
    return PipelineOptions(
        config.stage_cpus,
        config.stage_gpus,
        config.threads,
        config.transport,
        placement=config.stage_placement,
        stage_timeout=config.stage_timeout,
        replace_timeout=config.replace_timeout,
        logs=log_options(config),
        grace=config.grace,
    )


def router_options(config: ServeConfig) -> RouterOptions:
    """Defaults and limits of the router, and where the step times of this server's target are kept."""
    from app.speculation.step_costs import costs_file, way

    place = "served"
    if config.simulate is not None:  # another profile has other times
        place = f"simulated-{hashlib.sha256(repr(profile_at(config.simulate)).encode()).hexdigest()[:12]}"
    numbers, path = way(config.dtype, config.quantization), model_path(config.model, config.revision)
    file = costs_file(path, numbers, config.device, config.stages, config.threads, config.kv_gib, place)
    return RouterOptions(
        model=config.served_name,
        method=normalised(config.method),
        methods=config.allowed_methods,
        max_nodes=config.draft_nodes,
        limit_nodes=max(config.draft_nodes, 256),
        cost_file=str(file),
        shared_namespace=config.retrieval_namespace,
        max_wait=config.max_wait,
        affinity=config.affinity,
        affinity_slack=config.affinity_slack,
        failover=config.failover,
        step_deadline=config.step_deadline,
        software=SOFTWARE,
        logs=log_options(config),
        grace=config.grace,
        traces=trace_options(config),
        scheduler=SchedulerOptions(
            config.max_sequences,
            config.max_waiting,
            config.max_step_rows,
            config.prefill_chunk,
            config.stages,
            config.max_stall,
            config.prefix_cache,
        ),
    )


def access_options(config: ServeConfig) -> AccessOptions:
    """Who may ask for what. Reads the file of keys, to find out whether it is right.

    Raises:
        ConfigError: the file of keys cannot be read, or a record is wrong.
    """
    keys = None
    if config.api_keys is not None:
        keys = Path(config.api_keys).expanduser().absolute()
        read_records(keys)
    return AccessOptions(
        api_keys=None if keys is None else str(keys),
        tenant_header=config.tenant_header,
        trust_clients=config.trust_clients,
        open_metrics=config.open_metrics,
        cors_origins=config.origins,
        replicas=config.ingress_replicas,
    )


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
    given: dict[str, dict[str, Any]] = {name: getattr(config, name) for name in SECTIONS}
    path = None if config.draft_model is None else drafter_path(config.draft_model)
    draft_model = config.drafter_settings | {"path": path}
    # The built-in texts are there to be tried, and know little of what is asked: auto loses time over them.
    auto = {"retrieval": config.retrieval is not None} | given["auto"]
    del given["drafter"]
    return SpeculatorOptions(
        retrieval=_lookup(config),
        draft_model=method_settings("drafter", draft_model),
        **{name: method_settings(name, settings) for name, settings in (given | {"auto": auto}).items()},
    )


def served_speculators(config: ServeConfig) -> SpeculatorOptions:
    """Settings of the methods of a server, the model's part included; looks for heads if its own method needs them.

    Reads the model.

    Raises:
        ConfigError: the heads file is broken or of another model, or no heads can be found.
        UnsupportedModelError: the model cannot be run.
    """
    from app.speculation.heads import ensure_heads, known_heads, names_method, with_model
    from engine.model.loader import load_spec
    from engine.target.local import LocalTarget

    options = speculator_options(config)
    path = model_path(config.model, config.revision)
    spec = load_spec(path)
    file = None if config.heads is None else Path(config.heads)
    if options.pld_plus.heads:
        return with_model(options, spec, ())
    if names_method(config.method):
        # One process and no pipeline: before the deployment there is nothing else.
        target = replace(target_options(config), stages=1)
        heads = ensure_heads(path, spec, file, lambda: LocalTarget.load(target, path))
    else:
        heads = known_heads(path, spec, file)
    return with_model(options, spec, heads)


def check_served_drafter(config: ServeConfig) -> None:
    """Refuse a drafter that cannot draft for the target. Reads both models.

    Raises:
        ConfigError: there is no such model, or it has another tokenizer than the target.
        UnsupportedModelError: a model cannot be run.
    """
    if config.draft_model is not None:
        from app.speculation.drafter import check_drafter
        from engine.model.loader import load_spec

        path = model_path(config.model, config.revision)
        check_drafter(speculator_options(config).draft_model, path, load_spec(path))


def library(config: ServeConfig) -> LibraryAt | None:
    """What requests look up; the demo model has the built-in snapshot unless told otherwise.

    Raises:
        ConfigError: there is nothing where ``retrieval`` points.
    """
    if config.retrieval is None and config.model == DEMO:
        return builtin_library(target_name(config.model))
    return library_at(config.retrieval, target_name(config.model), revision=config.revision)


def watched_store(config: ServeConfig) -> str | None:
    """URL or folder of the store that the retrieval service watches; "": one in memory; None: no service.

    Raises:
        ConfigError: the URL of the store is none.
    """
    if config.retrieval is not None and is_store(config.retrieval):
        return checked_place(config.retrieval)
    return "" if config.live_namespaces else None


def retrieval_options(config: ServeConfig) -> RetrievalOptions | None:
    """Options of the retrieval service; None without a store to watch and a namespace that learns. Reads the model.

    Raises:
        ConfigError: the store's URL is none.
        UnsupportedModelError: the model's directory has no ``tokenizer.json``, by which snapshots know a tokenizer.
    """
    store = watched_store(config)
    if store is None:
        return None
    from engine.model.loader import load_spec

    if store:
        open_store_at(store, config.retrieval_namespace, FLAG).close()  # connects to nothing, but looks at the URL
    path = model_path(config.model, config.revision)
    cache = cache_folder() / "served-snapshots" if config.retrieval_cache is None else Path(config.retrieval_cache)
    return RetrievalOptions(
        store=store,
        cache=str(cache.expanduser().resolve()),
        target=Target(hash_of(path), load_spec(path).vocab_size),
        namespace=config.retrieval_namespace,
        poll=config.retrieval_poll,
        grace=config.retrieval_grace,
        live=config.live_namespaces,
        learning=LiveOptions(config.live_tokens, config.live_interval, config.live_compact_tokens),
        logs=log_options(config),
    )


def _lookup(config: ServeConfig) -> Callable[[], Library] | None:
    """What is looked up besides what the retrieval service has; where there is a service, at least nothing."""
    store = watched_store(config)
    if store:
        return FixedLibrary
    return library(config) or (FixedLibrary if store is not None else None)
