"""Fields that must fit each other, as far as the configuration alone can tell."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from app.config.fields import AllFields
from engine.drafter.settings import DrafterSettings
from engine.errors import ConfigError
from engine.target_model.options import AUTO, EVEN, MEASURED, check_memory, layer_counts

ORIGIN = re.compile(r"\*|https?://[^/\s,*]+")
RESOURCE = re.compile(r"[A-Za-z_][\w.-]{0,62}", re.ASCII)
RESERVED = ("CPU", "GPU", "TPU", "memory", "object_store_memory", "bundle")  # names that Ray gives a meaning of its own
MAX_RESOURCES, MAX_AMOUNT = 8, 1000.0
LEAST_AMOUNT = 1e-4  # Ray counts resources in these
ASKS_NOTHING = (None, "none", "auto", "unix", "tcp", "fast")  # values that ask for nothing beyond what is there


def stage_memory(given: str | float | None) -> tuple[int, ...]:
    """``"80,40"`` or 80 (GiB) as bytes; empty: no limit.

    Raises:
        ConfigError: it is no number and no list of numbers, or one is not above 0.
    """
    if given is None:
        return ()
    try:
        values = [float(part) for part in str(given).split(",")]
    except ValueError:
        values = []
    if not values or not all(value > 0 and math.isfinite(value) for value in values):
        raise ConfigError(f"stage_memory_gib is {given!r}; it must be GiB above 0, as in 80 or 80,80,40,40")
    return tuple(int(value * 2**30) for value in values)


def drafter_settings(path: str | None, layers: str | None, options: Mapping[str, int]) -> DrafterSettings | None:
    """The trained drafter that is named, and how it drafts; None: there is none.

    Raises:
        ConfigError: ``layers`` is no list of layers, an option is unknown or out of range, or both lack a drafter.
    """
    if path is None:
        if layers is not None or options:
            raise ConfigError(
                f"{'drafter_options' if layers is None else 'drafter_layers'} needs a drafter, none is named"
            )
        return None
    unknown = sorted(options.keys() - {"depth", "beam"})
    if unknown:
        raise ConfigError(f"drafter_options has no setting {unknown[0]!r}; it has beam, depth")
    taps = None
    if layers is not None:
        if not re.fullmatch(r"-?\d{1,4}(,-?\d{1,4})*", layers):
            raise ConfigError(f"drafter_layers is {layers!r}; it must be layers' numbers from 0, as in 1,15,28")
        taps = tuple(int(layer) for layer in layers.split(","))
    wrong = [name for name, value in options.items() if type(value) is not int]
    if wrong:
        raise ConfigError(f"drafter_options: {wrong[0]} is {options[wrong[0]]!r}; it must be a whole number")
    return DrafterSettings(path, taps, **options)


def check_split_fields(fields: AllFields) -> None:
    """Raises ValueError if a split makes no sense for any model; the message names the field."""
    if has_profiled_stages(fields):
        return
    try:
        split, stages = fields.layer_split, fields.stages
        if split not in (AUTO, EVEN, MEASURED) and len(layer_counts(split)) != stages:
            raise ConfigError(f"layer_split is {split}; it must give each of the {stages} stages its number of layers")
        check_memory(stage_memory(fields.stage_memory_gib), stages)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _on_cpu(fields: AllFields) -> str:
    why = "" if fields.device == "cpu" else f" ({fields.device}, and no stage has a GPU: stage_gpus is 0)"
    return f"device is cpu{why}, where fp32 is as exact"


def check_unused_fields(fields: AllFields) -> None:
    """Raises ValueError if a field that was given cannot act beside the others; the message names both."""
    unused: tuple[tuple[bool, str, tuple[str, ...]], ...] = (
        (
            fields.simulate is not None,
            "simulate is set: simulated stages have no weights",
            ("layer_split", "stage_memory_gib", "quantization", "numerics"),
        ),
        (stage_device(fields) == "cpu", _on_cpu(fields), ("numerics",)),
        (
            (fields.max_replicas or fields.replicas) == 1,
            f"{'replicas' if fields.max_replicas is None else 'max_replicas'} is 1: there is no other to choose",
            ("affinity", "affinity_slack", "failover"),
        ),
        (not fields.traces, "traces is false: no span is sent", ("otlp_endpoint",)),
        (fields.affinity == "none", "affinity is none; slack is for affinity prefix", ("affinity_slack",)),
        (
            fields.stages == 1 and not has_profiled_stages(fields),
            "stages is 1: it has no neighbour to send to",
            ("transport",),
        ),
    )
    for applies, reason, names in unused:
        for name in names:
            value = getattr(fields, name)
            if applies and name in fields.model_fields_set and value not in ASKS_NOTHING:
                raise ValueError(f"{name} is {value}, but has no effect: {reason}")


def check_replica_fields(fields: AllFields) -> None:
    """Raises ValueError if it is ambiguous how many pipelines there are; the message names the fields."""
    most = fields.max_replicas
    if most is None:
        for name in ("min_replicas", "scale_up_delay", "scale_down_delay"):
            if name in fields.model_fields_set:
                value = getattr(fields, name)
                raise ValueError(f"{name} is {value}, but has no effect: max_replicas is not given")
        return
    if "replicas" in fields.model_fields_set:
        raise ValueError(
            f"replicas is {fields.replicas}, but max_replicas is {most}: a server has either a number of pipelines, "
            "or bounds of one that follows the load"
        )
    if fields.min_replicas > most:
        raise ValueError(f"min_replicas is {fields.min_replicas}; it must be at most max_replicas, which is {most}")


def check_access_fields(fields: AllFields) -> None:
    """Raises ValueError if it is ambiguous what a request's sender may do; the message names the fields."""
    if fields.api_keys is not None and fields.tenant_header is not None:
        raise ValueError(
            f"tenant_header is {fields.tenant_header}, but api_keys is set: a key says whose a request is, or a gateway"
        )
    if fields.api_keys is not None and fields.trust_clients:
        raise ValueError("trust_clients is true, but api_keys is set: what a client may ask for is its key's")
    origins = fields.cors_origins
    for origin in (origins.split(",") if isinstance(origins, str) else origins) or ():
        if not ORIGIN.fullmatch(origin.strip()):
            raise ValueError(
                f"cors_origins is {origins}; each must be an origin, as in https://chat.example.com:8443, or *"
            )


def check_edge_resources(given: Mapping[str, float]) -> None:
    """Raises ValueError if the resources cannot be asked of Ray; the message says which and what would be right."""
    if len(given) > MAX_RESOURCES:
        raise ValueError(f"edge_resources names {len(given)} resources; it may name {MAX_RESOURCES}")
    for name, amount in given.items():
        if not RESOURCE.fullmatch(name) or name in RESERVED:
            raise ValueError(
                f"edge_resources names {name[:63]!r}; it must be a custom resource's name, of letters, digits, "
                "'.', '_' and '-', as in edge"
            )
        is_counted = LEAST_AMOUNT <= amount <= MAX_AMOUNT and math.isclose(amount, round(amount, 4), abs_tol=1e-9)
        if not is_counted:
            raise ValueError(
                f"edge_resources names {name} with {amount:g}; it must be {LEAST_AMOUNT:g} to {MAX_AMOUNT:g}, in steps "
                f"of {LEAST_AMOUNT:g}, as in 0.01"
            )


def stage_device(fields: AllFields) -> str:
    """Where stages run. With ``auto`` on a GPU if each reserves one: Ray shows a process the GPUs that are its own, so
    torch sees one in a stage there, and in no other; what the machine has that reads this decides nothing."""
    if fields.device != AUTO:
        return fields.device
    return "cuda" if fields.stage_gpus > 0 and fields.simulate is None else "cpu"


def has_profiled_stages(fields: AllFields) -> bool:
    """Whether the profile of ``simulate``, which is not read yet, says how many stages there are."""
    return fields.simulate is not None and "stages" not in fields.model_fields_set
