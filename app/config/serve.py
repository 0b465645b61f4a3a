"""The configuration of a server, checked and frozen; ``app.composition`` builds the options of its parts from it.

The fields are flags of commands, ``SPECTRA_NAME`` variables, keys of a Serve config file's ``args``, and arguments of
``build_app``. Unknown keys are errors. Nothing here reads a file or looks up a model, tokenizer or store.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import field_validator, model_validator

from app.config.fields import AnswerFields, FieldGroup, FixedFields
from app.config.method_fields import MethodFields, SettingsFields, build_method_fields
from app.inputs.default_model import DEFAULT_MODEL, is_default
from app.inputs.devices import AUTO, default_threads
from app.inputs.stores import NAMESPACE_FORM
from engine.errors import ConfigError, UnknownMethodError
from engine.target_model.options import EVEN, MEASURED, check_memory, default_nodes, layer_counts
from retrieval_store.service.manifest_feed import is_namespace
from speculators.methods import method_names, normalised

MAX_NAME = 256  # characters; requests may not have more
ORIGIN = re.compile(r"\*|https?://[^/\s,*]+")
RESOURCE = re.compile(r"[A-Za-z_][\w.-]{0,62}", re.ASCII)
RESERVED = ("CPU", "GPU", "TPU", "memory", "object_store_memory", "bundle")  # names with a meaning in Ray
HARMLESS = (None, "none", "auto", "unix", "tcp", "fast")  # values that are right where the field has no effect


if TYPE_CHECKING:
    AllMethodFields = MethodFields
else:
    AllMethodFields = build_method_fields()

GROUPS: tuple[type[FieldGroup], ...] = (*FixedFields.__bases__, AllMethodFields)
"""The groups in the order of the help."""


class ServeConfig(FixedFields, AllMethodFields, title="ServeConfig"):
    """The configuration of one application."""

    @field_validator("model")
    @classmethod
    def _name_default(cls, model: str) -> str:
        return DEFAULT_MODEL if is_default(model) else model

    @model_validator(mode="after")
    def _check(self) -> ServeConfig:
        try:
            self._check_methods()
            self._check_devices()
            _check_split_fields(self)
            _check_rank_fields(self)
            _check_replica_fields(self)
            _check_unused_fields(self)
            _check_access_fields(self)
            _check_edge_resources(self.edge_resources)
            self._check_names()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def _check_names(self) -> None:
        if wrong := next((name for name in self.served_names if len(name) > MAX_NAME), None):
            raise ConfigError(f"name is {wrong[:20]!r}..; a model's name has at most {MAX_NAME} characters")
        for name in self.live_namespaces:
            if not is_namespace(name):
                raise ConfigError(f"live names {name!r}; a namespace has {NAMESPACE_FORM}")

    def _check_methods(self) -> None:
        for method in _listed(self.methods):
            try:
                method_names(method)
            except UnknownMethodError as error:
                raise ConfigError(f"methods: {error}") from None
        if self.methods is not None and not self.allowed_methods:
            raise ConfigError("methods names no method; leave it out to allow all, or name autoregressive")
        if self.drafter is None and self.drafter_options.model_fields_set and not is_default(self.model):
            raise ConfigError("drafter_options is given, but drafter is not; name a drafter")

    def _check_devices(self) -> None:
        drafter = self.draft_model_settings["device"]
        if self.draft_model is not None and drafter != "cpu" and not (self.speculator_actors and self.speculator_gpus):
            raise ConfigError(
                f"draft_model on {drafter} needs speculator_actors of at least 1 and speculator_gpus above 0; "
                """draft_model_options '{"device": "cpu"}' keeps it on the CPU"""
            )
        if self.stage_device != "cpu" and self.stage_gpus == 0:  # Ray hides the GPUs from an actor that reserves none
            raise ConfigError(f"stage_gpus is 0, but device is {self.device}: a stage needs a GPU (1) or a share (0.5)")
        if self.transport == "nccl" and self.stage_device == "cpu":
            raise ConfigError("transport is nccl, but device is cpu; nccl needs stages on GPUs, gloo does not")
        if self.simulate is not None and self.stage_device != "cpu":
            raise ConfigError(f"device is {self.stage_device}, but simulate is set: simulated stages run on cpu")
        if self.simulate_answers is not None and self.simulate is None:
            raise ConfigError("simulate_answers is given, but simulate is not; name a profile")

    @property
    def stage_device(self) -> str:
        """Return where stages run: cpu, cuda or cuda:N.

        ``auto`` is cuda if stages reserve GPUs: Ray hides all others from them, and this machine may have none.
        """
        if self.device != AUTO:
            return self.device
        return "cuda" if self.stage_gpus > 0 and self.simulate is None else "cpu"

    @property
    def served_names(self) -> tuple[str, ...]:
        """Return the names that clients may give as ``model``, in addition to the hub id; at least one."""
        given = [self.name] if isinstance(self.name, str) else self.name or []
        return tuple(dict.fromkeys(filter(None, given))) or (Path(self.model).name.removesuffix(".gguf"),)

    @property
    def served_name(self) -> str:
        return self.served_names[0]

    @property
    def least_pipelines(self) -> int:
        """Return the number of pipelines that always exist."""
        return self.replicas if self.max_replicas is None else self.min_replicas

    @property
    def most_pipelines(self) -> int:
        """Return the largest number of pipelines."""
        return self.max_replicas or self.replicas

    @property
    def stage_threads(self) -> int:
        """Return torch's threads in a rank of a stage; assumes that all nodes are like this machine."""
        if self.threads is not None or self.stage_device != "cpu":
            return self.threads or 1
        is_spread = self.stage_placement in ("spread", "strict_spread")
        return default_threads(self.most_pipelines * (1 if is_spread else self.stages) * self.tensor_parallel)

    @property
    def draft_nodes(self) -> int:
        """Return the drafted nodes per step of a request that gives no number."""
        return default_nodes(self.stage_device) if self.max_nodes is None else self.max_nodes

    def section(self, name: str) -> SettingsFields:
        section: SettingsFields = getattr(self, name)
        return section

    @property
    def draft_model_settings(self) -> dict[str, Any]:
        """Return the settings of draft-model; dtype, device and numerics default to the target's."""
        given = {"dtype": self.dtype, "device": self.device} | self.section("draft_model_options").given
        if given["device"] == AUTO:
            given["device"] = "cuda" if self.speculator_actors and self.speculator_gpus else "cpu"
        inherits = given["device"] != "cpu" and self.numerics != "layers"  # which a draft model cannot use
        return {"numerics": self.numerics if inherits else AUTO} | given

    @property
    def live_namespaces(self) -> tuple[str, ...]:
        return _listed(self.live)

    @property
    def allowed_methods(self) -> tuple[str, ...]:
        """Return the methods that requests may name; empty: all."""
        return tuple(dict.fromkeys(normalised(method) for method in _listed(self.methods)))

    @property
    def origins(self) -> tuple[str, ...]:
        """Return the web origins that may send requests; empty: none."""
        return _listed(self.cors_origins)


def _listed(given: str | list[str] | None) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else given or []
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))


def stage_memory(given: str | float | None) -> tuple[int, ...]:
    """Return the bytes of ``"80,40"`` or 80 (GiB), one value per stage or one for all; empty without a limit."""
    if given is None:
        return ()
    try:
        values = [float(part) for part in str(given).split(",")]
    except ValueError:
        values = []
    if not values or not all(value > 0 and math.isfinite(value) for value in values):
        raise ConfigError(f"stage_memory_gib is {given!r}; it must be GiB above 0, as in 80 or 80,80,40,40")
    return tuple(int(value * 2**30) for value in values)


def _check_split_fields(config: ServeConfig) -> None:
    """Raise ConfigError if a split is wrong for every model; the message names the field."""
    if _has_profiled_stages(config):
        return
    split, stages = config.layer_split, config.stages
    if split not in (AUTO, EVEN, MEASURED) and len(layer_counts(split)) != stages:
        raise ConfigError(f"layer_split is {split}; it must give each of the {stages} stages its number of layers")
    check_memory(stage_memory(config.stage_memory_gib), stages)


def _check_rank_fields(config: ServeConfig) -> None:
    """Raise ConfigError if another field rules out the given number of ranks; the message names both."""
    if config.tensor_parallel == 1:
        return
    given = f"tensor_parallel is {config.tensor_parallel}"
    if config.simulate is not None:
        raise ConfigError(f"{given}, but simulate is set: a profile has the times of whole stages; leave one out")
    if config.standby_stages:
        raise ConfigError(
            f"standby_stages is {config.standby_stages}, but {given}: a spare rank would have to be on the node of its "
            "stage; set standby_stages to 0"
        )
    if ":" in config.device:
        raise ConfigError(f"device is {config.device}, but {given}: each rank needs a GPU of its own; use cuda")
    if config.stage_device != "cpu" and config.stage_gpus < 1:
        raise ConfigError(f"stage_gpus is {config.stage_gpus:g}, but {given}: each rank needs a GPU of its own (1)")


def _check_unused_fields(config: ServeConfig) -> None:
    """Raise ConfigError if another field leaves a given one without effect; the message names both."""
    on_cpu = "" if config.device == "cpu" else f" ({config.device}, and stage_gpus is 0)"
    unused: tuple[tuple[bool, str, tuple[str, ...]], ...] = (
        (
            config.simulate is not None,
            "simulate is set: simulated stages have no weights",
            ("layer_split", "stage_memory_gib", "quantization", "numerics"),
        ),
        (config.stage_device == "cpu", f"device is cpu{on_cpu}, which computes exactly in float32", ("numerics",)),
        (
            (config.max_replicas or config.replicas) == 1,
            f"{'replicas' if config.max_replicas is None else 'max_replicas'} is 1: there is no other pipeline",
            ("affinity", "failover"),
        ),
        (
            config.stages == 1 and not _has_profiled_stages(config),
            "stages is 1: nothing is sent between stages",
            ("transport",),
        ),
        (
            config.answers_per_tenant == 0,
            "answers_per_tenant is 0: no answers are kept",
            (*(AnswerFields.model_fields.keys() - {"answers_per_tenant", "answer_store"}),),
        ),
        (
            config.max_replicas is None,
            "max_replicas is not given",
            ("min_replicas", "scale_up_delay", "scale_down_delay"),
        ),
    )
    for applies, reason, names in unused:
        for name in names:
            value = getattr(config, name)
            if applies and name in config.model_fields_set and value not in HARMLESS:
                raise ConfigError(f"{name} is {value}, but has no effect: {reason}")


def _check_replica_fields(config: ServeConfig) -> None:
    """Raise ConfigError if the number of pipelines is ambiguous."""
    most = config.max_replicas
    if most is None:
        return
    if "replicas" in config.model_fields_set:
        raise ConfigError(
            f"replicas is {config.replicas}, but max_replicas is {most}: give either a fixed number of pipelines "
            "or the bounds of a number that follows the load"
        )
    if config.min_replicas > most:
        raise ConfigError(f"min_replicas is {config.min_replicas}; it must be at most max_replicas, which is {most}")


def _check_access_fields(config: ServeConfig) -> None:
    """Raise ConfigError if the rights of a client are ambiguous."""
    if config.api_keys is not None and config.tenant_header is not None:
        raise ConfigError(f"tenant_header is {config.tenant_header}, but api_keys is set: only one may name the tenant")
    if config.api_keys is not None and config.trust_clients:
        raise ConfigError("trust_clients is true, but api_keys is set: each key has its own rights")
    if not all(map(ORIGIN.fullmatch, config.origins)):
        raise ConfigError(
            f"cors_origins is {config.cors_origins}; each must be an origin, as in https://a.org:8443, or *"
        )


def _check_edge_resources(given: Mapping[str, float]) -> None:
    for name, amount in given.items():
        if not RESOURCE.fullmatch(name) or name in RESERVED:
            raise ConfigError(
                f"edge_resources names {name[:63]!r}; a custom resource's name has letters, digits, '.', '_', '-'"
            )
        if not (1e-4 <= amount <= 1000 and math.isclose(amount, round(amount, 4), abs_tol=1e-9)):  # as Ray counts
            raise ConfigError(
                f"edge_resources names {name} with {amount:g}; it must be 0.0001 to 1000, in steps of 0.0001"
            )


def _has_profiled_stages(config: ServeConfig) -> bool:
    """Whether the number of stages comes from the profile of ``simulate``, which is read later."""
    return config.simulate is not None and "stages" not in config.model_fields_set
