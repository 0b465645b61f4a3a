"""The configuration of a server, checked and frozen; ``app.composition`` builds the options of its parts from it.

The fields are flags of commands, ``SPECTRA_NAME`` variables, keys of a Serve config file's ``args``, and arguments of
``build_app``. Unknown keys are errors. Nothing here reads a file or looks up a model, tokenizer or store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import field_validator, model_validator

from app.config.all_fields import AllFields
from app.config.checks import (
    check_access_fields,
    check_edge_resources,
    check_replica_fields,
    check_split_fields,
    check_unused_fields,
    drafter_settings,
    stage_device,
)
from app.config.method_fields import SettingsFields
from app.inputs.default_model import DEFAULT_MODEL, is_default
from app.inputs.devices import AUTO, default_threads
from engine.errors import ConfigError, UnknownMethodError
from engine.target_model.options import default_nodes
from retrieval_store.service.manifest_feed import is_namespace
from speculators.methods import method_names, normalised

MAX_NAME = 256  # characters; requests may not have more


class ServeConfig(AllFields):
    """The configuration of one application."""

    @field_validator("model")
    @classmethod
    def _name_default(cls, model: str) -> str:
        return DEFAULT_MODEL if is_default(model) else model

    @model_validator(mode="after")
    def _check(self) -> ServeConfig:
        self._check_methods()
        self._check_devices()
        if self.simulate is not None and self.stage_device != "cpu":
            raise ValueError(f"device is {self.stage_device}, but simulate is set: simulated stages run on cpu")
        if self.simulate_answers is not None and self.simulate is None:
            raise ValueError("simulate_answers is given, but simulate is not; name a profile")
        check_split_fields(self)
        check_replica_fields(self)
        check_unused_fields(self)
        check_access_fields(self)
        check_edge_resources(self.edge_resources)
        if wrong := next((name for name in self.served_names if len(name) > MAX_NAME), None):
            raise ValueError(f"name is {wrong[:20]!r}..; a model's name has at most {MAX_NAME} characters")
        for name in self.live_namespaces:
            if not is_namespace(name):
                raise ValueError(
                    f"live names {name!r}; a namespace has 1 to 128 letters, digits, '.', '_' and '-', no '.' first"
                )
        return self

    def _check_methods(self) -> None:
        for method in _listed(self.methods):
            try:
                method_names(method)
            except UnknownMethodError as error:
                raise ValueError(f"methods: {error}") from None
        if self.methods is not None and not self.allowed_methods:
            raise ValueError("methods names no method; leave it out to allow all, or name autoregressive")
        try:
            drafter_settings(self.drafter, self.drafter_options)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    def _check_devices(self) -> None:
        drafter = self.draft_model_settings["device"]
        if self.draft_model is not None and drafter != "cpu" and not (self.speculator_actors and self.speculator_gpus):
            raise ValueError(
                f"draft_model on {drafter} needs speculator_actors of at least 1 and speculator_gpus above 0; "
                """draft_model_options '{"device": "cpu"}' keeps it on the CPU"""
            )
        if self.stage_device != "cpu" and self.stage_gpus == 0:  # Ray hides the GPUs from an actor that reserves none
            raise ValueError(
                f"stage_gpus is 0, but device is {self.device}: a stage needs a GPU (1) or a share of one, as in 0.5"
            )
        if self.transport == "nccl" and self.stage_device == "cpu":
            raise ValueError("transport is nccl, but device is cpu; nccl needs stages on GPUs, gloo does not")

    @property
    def stage_device(self) -> str:
        """Return where stages run: cpu, cuda or cuda:N."""
        return stage_device(self)

    @property
    def served_names(self) -> tuple[str, ...]:
        """Return the names that clients may give as ``model``, in addition to the hub id; at least one."""
        given = [self.name] if isinstance(self.name, str) else self.name or []
        return tuple(dict.fromkeys(filter(None, given))) or (Path(self.model).name.removesuffix(".gguf"),)

    @property
    def served_name(self) -> str:
        """Return the name in metrics and answers."""
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
        """Return torch's threads in a stage; assumes that all nodes are like this machine."""
        if self.threads is not None or self.stage_device != "cpu":
            return self.threads or 1
        is_spread = self.stage_placement in ("spread", "strict_spread")
        return default_threads(self.most_pipelines * (1 if is_spread else self.stages))

    @property
    def draft_nodes(self) -> int:
        """Return the drafted nodes per step of a request that gives no number."""
        return default_nodes(self.stage_device) if self.max_nodes is None else self.max_nodes

    def section(self, name: str) -> SettingsFields:
        """Return the settings of a method, by the section's name."""
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
        """Return the namespaces that learn."""
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
