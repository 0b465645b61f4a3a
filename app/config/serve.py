"""Configuration of a deployment: checked here once, frozen dataclasses from here on.

Unknown keys are errors. The same fields are flags of ``spectra serve``, keys of a Serve YAML's ``args``, and arguments
of ``build_app``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
from pydantic import model_validator

from app.config.drafter_path import drafter_path
from app.config.fields import ServeFields
from app.config.simulation import simulated_defaults, simulation_of
from app.config.split import check_split_flags, stage_memory
from app.config.unused_flags import check_idle_flags
from app.demo.paths import DEMO, DEMO_TARGET
from app.inputs.cache import cache_folder
from app.inputs.libraries import LibraryAt, builtin_library, checked_place, library_at
from app.inputs.stores import is_store
from deployments.options import PipelineOptions, RouterOptions, SpeculatorPlacement
from engine.scheduling.scheduler import SchedulerOptions
from engine.simulated.profile import Simulation
from engine.target.options import GIB, TargetOptions
from retrieval_store.index.index import FixedLibrary, Library
from retrieval_store.service.manifest_feed import is_namespace
from speculators.corpus.rest import RestConfig
from speculators.draft_model.speculator import DraftModelConfig
from speculators.mixing.auto import AutoConfig
from speculators.mixing.combined import CombinationConfig
from speculators.ngrams.anpd import AnpdConfig
from speculators.ngrams.lookahead import LookaheadConfig
from speculators.ngrams.pld import PldConfig
from speculators.ngrams.suffix import SuffixConfig
from speculators.pld_plus.speculator import PldPlusConfig
from speculators.registry import SpeculatorOptions
from speculators.spectra.core import SpectraCoreConfig
from speculators.spectra.retrieval import SpectraRetrievalConfig
from speculators.spectra.speculator import SpectraConfig
from speculators.successors.speculator import SuccessorConfig
from speculators.successors.token_recycling import TokenRecyclingConfig


class ServeConfig(ServeFields):
    """Everything one application can be told, checked, and what each part of it is told of that."""

    @model_validator(mode="before")
    @classmethod
    def _simulated(cls, given: Any) -> Any:
        return simulated_defaults(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _check(self) -> ServeConfig:
        draft = self.speculators().draft_model
        if draft.path is not None and draft.device != "cpu" and not (self.speculator_actors and self.speculator_gpus):
            raise ValueError(
                f"draft_model on {draft.device} needs speculator_actors of at least 1 and speculator_gpus above 0; "
                """drafter '{"device": "cpu"}' keeps it on the CPU"""
            )
        if self.device != "cpu" and self.stage_gpus == 0:  # Ray hides the GPUs from who asks for none
            raise ValueError(f"stage_gpus is 0, but a stage on {self.device} needs a GPU, or a share of one")
        if self.transport == "nccl" and self.device == "cpu":
            raise ValueError("transport is nccl, but device is cpu; nccl needs stages on GPUs, gloo does not")
        if self.simulate is not None and self.device != "cpu":
            raise ValueError(f"simulate needs no device, but device is {self.device}")
        if self.simulate_answers is not None and self.simulate is None:
            raise ValueError("simulate_answers goes with simulate, which says how long a stage takes")
        check_split_flags(self.layer_split, self.stage_memory_gib, self.stages)
        check_idle_flags(self)
        for name in self.live_namespaces:
            if not is_namespace(name):
                raise ValueError(
                    f"live names {name!r}; a namespace is 1 to 128 letters, digits, '.', '_' and '-', no '.' first"
                )
        return self

    @property
    def model_path(self) -> str:
        """What the loader takes: the demo model's directory, or ``model`` itself."""
        return str(DEMO_TARGET) if self.model == DEMO else self.model

    @property
    def served_name(self) -> str:
        """What clients write as ``model``."""
        return self.name or (DEMO if self.model == DEMO else Path(self.model).name)

    def target(self) -> TargetOptions:
        """How to load and run the target."""
        return TargetOptions(
            model=self.model_path,
            stages=self.stages,
            dtype=self.dtype,
            device=self.device,
            kv_bytes=int(self.kv_gib * GIB),
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            quantization=self.quantization,
            split=self.layer_split,
            stage_memory=stage_memory(self.stage_memory_gib),
            cost_folder=str(cache_folder() / "layer-costs"),
            simulation=self._simulation(),
        )

    def _simulation(self) -> Simulation | None:
        if self.simulate is None:
            return None
        return simulation_of(self.simulate, self.simulate_answers, self.model_path)

    def pipeline(self) -> PipelineOptions:
        """What a stage gets from the cluster."""
        return PipelineOptions(
            self.stage_cpus,
            self.stage_gpus,
            self.threads,
            self.transport,
            placement=self.stage_placement,
            stage_timeout=self.stage_timeout,
            replace_timeout=self.replace_timeout,
        )

    def router(self) -> RouterOptions:
        """Defaults and limits of the router."""
        return RouterOptions(
            model=self.served_name,
            method=self.method,
            max_nodes=self.max_nodes,
            limit_nodes=max(self.max_nodes, 256),
            shared_namespace=self.retrieval_namespace,
            max_wait=self.max_wait,
            affinity=self.affinity,
            affinity_slack=self.affinity_slack,
            failover=self.failover,
            step_deadline=self.step_deadline,
            scheduler=SchedulerOptions(
                self.max_sequences,
                self.max_waiting,
                self.max_step_rows,
                self.prefill_chunk,
                self.stages,
                self.max_stall,
                self.prefix_cache,
            ),
        )

    def speculators(self) -> SpeculatorOptions:
        """Settings of the methods."""
        return SpeculatorOptions(
            draft_model=_settings(DraftModelConfig, self._drafter(), "drafter"),
            anpd=_settings(AnpdConfig, self.anpd, "anpd"),
            lookahead=_settings(LookaheadConfig, self.lookahead, "lookahead"),
            pld=_settings(PldConfig, self.pld, "pld"),
            pld_plus=_settings(PldPlusConfig, self.pld_plus, "pld_plus"),
            rest=_settings(RestConfig, self.rest, "rest"),
            retrieval=self._library(),
            spectra=_settings(SpectraConfig, self.spectra, "spectra"),
            spectra_core=_settings(SpectraCoreConfig, self.spectra_core, "spectra_core"),
            spectra_retrieval=_settings(SpectraRetrievalConfig, self.spectra_retrieval, "spectra_retrieval"),
            suffix=_settings(SuffixConfig, self.suffix, "suffix"),
            token_recycling=_settings(TokenRecyclingConfig, self.token_recycling, "token_recycling"),
            successors=_settings(SuccessorConfig, self.successors, "successors"),
            combination=_settings(CombinationConfig, self.combination, "combination"),
            # The built-in texts are there to be tried, and know little of what is asked: auto loses time over them.
            auto=_settings(AutoConfig, {"retrieval": self.retrieval is not None} | self.auto, "auto"),
        )

    @property
    def library(self) -> LibraryAt | None:
        """What requests look up; the demo model has the built-in snapshot unless told otherwise."""
        if self.retrieval is None and self.model == DEMO:
            return builtin_library(self.model_path)
        return library_at(self.retrieval, self.model_path)

    @property
    def watched_store(self) -> str | None:
        """URL or folder of the store that the retrieval service watches; "": one in memory; None: no service."""
        if self.retrieval is not None and is_store(self.retrieval):
            return checked_place(self.retrieval)
        return "" if self.live_namespaces else None

    @property
    def live_namespaces(self) -> tuple[str, ...]:
        """Namespaces that learn."""
        names = self.live.split(",") if isinstance(self.live, str) else self.live or []
        return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))

    def _library(self) -> Callable[[], Library] | None:
        """What is looked up besides what the retrieval service has; where there is a service, at least nothing."""
        if self.watched_store:
            return FixedLibrary
        return self.library or (FixedLibrary if self.watched_store is not None else None)

    def _drafter(self) -> dict[str, Any]:
        """Settings of draft-model: dtype and device are the target's unless given."""
        if "path" in self.drafter:
            raise ValueError("drafter has no setting 'path'; draft_model says which model it is")
        path = None if self.draft_model is None else drafter_path(self.draft_model)
        return {"dtype": self.dtype, "device": self.device, **self.drafter, "path": path}

    def placement(self) -> SpeculatorPlacement:
        """Where speculators run."""
        return SpeculatorPlacement(self.speculator_actors, self.draft_timeout, self.speculator_gpus)


def _settings(kind: type[Any], given: dict[str, Any], name: str) -> Any:
    known = {field.name for field in fields(kind)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise ValueError(f"{name} has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from None
