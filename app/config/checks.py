"""Checks across fields that need nothing but the configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from app.config.all_fields import AllFields
from engine.drafter.settings import DrafterSettings
from engine.errors import ConfigError
from engine.target_model.options import AUTO, EVEN, MEASURED, check_memory, layer_counts

ORIGIN = re.compile(r"\*|https?://[^/\s,*]+")
RESOURCE = re.compile(r"[A-Za-z_][\w.-]{0,62}", re.ASCII)
RESERVED = ("CPU", "GPU", "TPU", "memory", "object_store_memory", "bundle")  # names with a meaning in Ray
MAX_RESOURCES, MAX_AMOUNT = 8, 1000.0
LEAST_AMOUNT = 1e-4  # the unit in which Ray counts resources
HARMLESS = (None, "none", "auto", "unix", "tcp", "fast")  # values that are right where the field has no effect


def stage_memory(given: str | float | None) -> tuple[int, ...]:
    """Return the bytes of ``"80,40"`` or 80 (GiB), one value per stage or one for all; empty without a limit.

    Raises:
        ConfigError: a value is not a number above 0.
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


def drafter_settings(path: str | None, options: Mapping[str, Any]) -> DrafterSettings | None:
    """Return the trained drafter with its options; None if there is none.

    Raises:
        ConfigError: an option is unknown or out of range, or has no drafter.
    """
    if path is None:
        if options:
            raise ConfigError("drafter_options is given, but drafter is not; name a drafter")
        return None
    unknown = sorted(options.keys() - {"beam", "depth", "layers"})
    if unknown:
        raise ConfigError(f"drafter_options has no setting {unknown[0]!r}; it has beam, depth, layers")
    sizes = {name: value for name, value in options.items() if name != "layers"}
    for name, value in sizes.items():
        if type(value) is not int:
            raise ConfigError(f"drafter_options: {name} is {value!r}; it must be an integer")
    layers = options.get("layers")
    if layers is not None and not (
        isinstance(layers, list) and layers and all(type(one) is int and -1 <= one < 10_000 for one in layers)
    ):
        raise ConfigError(
            f"drafter_options: layers is {layers!r}; it must be a list of layers from -1, as in [1, 15, 28]"
        )
    return DrafterSettings(path, None if layers is None else tuple(layers), **sizes)


def check_split_fields(fields: AllFields) -> None:
    """Raise ValueError if a split is wrong for every model; the message names the field."""
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
    why = "" if fields.device == "cpu" else f" ({fields.device}, and stage_gpus is 0)"
    return f"device is cpu{why}, which computes exactly in float32"


def check_unused_fields(fields: AllFields) -> None:
    """Raise ValueError if another field leaves a given one without effect; the message names both."""
    unused: tuple[tuple[bool, str, tuple[str, ...]], ...] = (
        (
            fields.simulate is not None,
            "simulate is set: simulated stages have no weights",
            ("layer_split", "stage_memory_gib", "quantization", "numerics"),
        ),
        (stage_device(fields) == "cpu", _on_cpu(fields), ("numerics",)),
        (
            (fields.max_replicas or fields.replicas) == 1,
            f"{'replicas' if fields.max_replicas is None else 'max_replicas'} is 1: there is no other pipeline",
            ("affinity", "failover"),
        ),
        (
            fields.stages == 1 and not has_profiled_stages(fields),
            "stages is 1: nothing is sent between stages",
            ("transport",),
        ),
    )
    for applies, reason, names in unused:
        for name in names:
            value = getattr(fields, name)
            if applies and name in fields.model_fields_set and value not in HARMLESS:
                raise ValueError(f"{name} is {value}, but has no effect: {reason}")


def check_replica_fields(fields: AllFields) -> None:
    """Raise ValueError if the number of pipelines is ambiguous; the message names the fields."""
    most = fields.max_replicas
    if most is None:
        for name in ("min_replicas", "scale_up_delay", "scale_down_delay"):
            if name in fields.model_fields_set:
                value = getattr(fields, name)
                raise ValueError(f"{name} is {value}, but has no effect: max_replicas is not given")
        return
    if "replicas" in fields.model_fields_set:
        raise ValueError(
            f"replicas is {fields.replicas}, but max_replicas is {most}: give either a fixed number of pipelines "
            "or the bounds of a number that follows the load"
        )
    if fields.min_replicas > most:
        raise ValueError(f"min_replicas is {fields.min_replicas}; it must be at most max_replicas, which is {most}")


def check_access_fields(fields: AllFields) -> None:
    """Raise ValueError if the rights of a client are ambiguous; the message names the fields."""
    if fields.api_keys is not None and fields.tenant_header is not None:
        raise ValueError(
            f"tenant_header is {fields.tenant_header}, but api_keys is set: the tenant comes from one of them, not both"
        )
    if fields.api_keys is not None and fields.trust_clients:
        raise ValueError("trust_clients is true, but api_keys is set: each key has its own rights")
    origins = fields.cors_origins
    for origin in (origins.split(",") if isinstance(origins, str) else origins) or ():
        if not ORIGIN.fullmatch(origin.strip()):
            raise ValueError(
                f"cors_origins is {origins}; each must be an origin, as in https://chat.example.com:8443, or *"
            )


def check_edge_resources(given: Mapping[str, float]) -> None:
    """Raise ValueError if Ray would not accept the resources; the message says which and what is allowed."""
    if len(given) > MAX_RESOURCES:
        raise ValueError(f"edge_resources names {len(given)} resources; it may name at most {MAX_RESOURCES}")
    for name, amount in given.items():
        if not RESOURCE.fullmatch(name) or name in RESERVED:
            raise ValueError(
                f"edge_resources names {name[:63]!r}; a custom resource's name has letters, digits, '.', '_' and '-', "
                "as in edge"
            )
        is_valid = LEAST_AMOUNT <= amount <= MAX_AMOUNT and math.isclose(amount, round(amount, 4), abs_tol=1e-9)
        if not is_valid:
            raise ValueError(
                f"edge_resources names {name} with {amount:g}; it must be {LEAST_AMOUNT:g} to {MAX_AMOUNT:g}, in steps "
                f"of {LEAST_AMOUNT:g}, as in 0.01"
            )


def stage_device(fields: AllFields) -> str:
    """Return where stages run: cpu, cuda or cuda:N.

    ``auto`` is cuda if stages reserve GPUs: Ray hides all others from them. The machine that reads this may have none.
    """
    if fields.device != AUTO:
        return fields.device
    return "cuda" if fields.stage_gpus > 0 and fields.simulate is None else "cpu"


def has_profiled_stages(fields: AllFields) -> bool:
    """Whether the number of stages comes from the profile of ``simulate``, which is read later."""
    return fields.simulate is not None and "stages" not in fields.model_fields_set
