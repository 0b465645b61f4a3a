"""Configuration of a deployment: checked here once, frozen dataclasses from here on.

Unknown keys are errors. The same fields are flags of ``spectra serve``, keys of a Serve YAML's ``args``, and arguments
of ``build_app``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.cache import cache_folder
from app.demo.paths import DEMO, DEMO_TARGET
from app.drafter import drafter_path
from app.idle_flags import check_idle_flags
from app.libraries import LibraryAt, builtin_library, checked_place, library_at
from app.simulation import simulated_defaults, simulation_of
from app.split import check_split_flags, stage_memory
from app.stores import DEFAULT_NAMESPACE, is_store
from deployments.options import PipelineOptions, RouterOptions, SpeculatorPlacement
from engine.scheduler import SchedulerOptions
from engine.simulated.profile import Simulation
from engine.target import GIB, TargetOptions
from retrieval_store.library import FixedLibrary, Library
from retrieval_store.service.offers import NAMESPACE, is_namespace
from speculators.anpd import AnpdConfig
from speculators.auto import AutoConfig
from speculators.combined import CombinationConfig
from speculators.draft_model import DraftModelConfig
from speculators.lookahead import LookaheadConfig
from speculators.pld import PldConfig
from speculators.pld_plus import PldPlusConfig
from speculators.registry import SpeculatorOptions
from speculators.rest import RestConfig
from speculators.spectra import SpectraConfig
from speculators.spectra_core import SpectraCoreConfig
from speculators.spectra_retrieval import SpectraRetrievalConfig
from speculators.successors import SuccessorConfig
from speculators.suffix import SuffixConfig
from speculators.token_recycling import TokenRecyclingConfig

NAMESPACE_PATTERN = f"^{NAMESPACE.pattern}$"


class ServeConfig(BaseModel):
    """Everything one application can be told. Sizes in tokens unless the field says otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)  # a URL may hold a password

    model: str = Field(DEMO, description="directory or hub id of the target; 'demo' is the model in the package")
    name: str | None = Field(None, description="name clients use; the model's last path component by default")
    method: str = Field("auto", description="speculation for requests that name none")
    max_nodes: Annotated[int, Field(ge=0, le=4096)] = Field(64, description="drafted nodes per step, by default")
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="float32 on a CPU and the checkpoint's own on a GPU by default"
    )
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = Field("cpu", description="cpu or cuda")
    stages: Annotated[int, Field(ge=1)] = Field(1, description="pipeline stages")
    layer_split: str = Field(
        "auto",
        description="layers of every stage: auto (by weights), even, measured (by times, taken once per device), or "
        "counts as in 22,20,20,18",
    )
    stage_memory_gib: str | float | None = Field(
        None, description="GiB of weights and KV cache a stage may take, or one number per stage, as in 80,80,40,40"
    )
    quantization: Literal["int8"] | None = Field(
        None, description="int8 makes the layers' matrices int8 by bitsandbytes (extra int8); not by default"
    )
    replicas: Annotated[int, Field(ge=1, le=64)] = Field(1, description="pipelines, each with all the stages")
    affinity: Literal["none", "prefix"] = Field(
        "none", description="prefix sends requests that begin alike to the same replica"
    )
    affinity_slack: Annotated[int, Field(ge=0)] = Field(
        4096, description="tokens of work that replica may have more than the least loaded one"
    )
    failover: Annotated[float, Field(ge=0)] = Field(
        1.0, description="seconds a lost pipeline has to come back before other replicas take its requests over"
    )
    step_deadline: Annotated[float, Field(gt=0)] = Field(
        10.0, description="seconds a step may take, and at least ten times what is usual, before it counts as hung"
    )
    kv_gib: Annotated[float, Field(gt=0)] = Field(0.5, description="KV cache over all stages, GiB")
    block_size: Annotated[int, Field(ge=1)] = Field(64, description="tokens per KV block")
    max_model_len: Annotated[int, Field(ge=2)] | None = Field(None, description="longest prompt + output")
    max_sequences: Annotated[int, Field(ge=1)] = Field(64, description="sequences decoded side by side")
    max_waiting: Annotated[int, Field(ge=1)] = Field(256, description="requests queued before 429")
    max_wait: Annotated[float, Field(gt=0)] | None = Field(
        60.0,
        description="seconds a request may be expected to wait for its start before it is answered with 429; tenants "
        "(the request's user) take turns, so whoever lets clients choose user freely lets them choose their share",
    )
    max_step_rows: Annotated[int, Field(ge=1)] = Field(2048, description="tokens and nodes of one step")
    prefill_chunk: Annotated[int, Field(ge=1)] = Field(512, description="prompt tokens per step, at most")
    max_stall: Annotated[float, Field(gt=0)] = Field(
        0.1, description="seconds that prompt tokens may add to a step while any sequence decodes"
    )
    prefix_cache: bool = Field(
        True, description="keep the beginnings of texts in KV blocks that are free, for requests that begin alike"
    )
    speculator_actors: Annotated[int, Field(ge=0)] = Field(0, description="0 drafts inside the router")
    speculator_gpus: Annotated[float, Field(ge=0)] = Field(0.0, description="Ray GPUs a speculator actor reserves")
    draft_timeout: Annotated[float, Field(gt=0)] = Field(2.0, description="seconds a draft may take, in actors")
    ingress_replicas: Annotated[int, Field(ge=1)] = Field(1, description="HTTP replicas")
    threads: Annotated[int, Field(ge=1)] = Field(1, description="intra-op threads of a stage")
    stage_cpus: Annotated[float, Field(ge=0)] = Field(0.1, description="Ray CPUs a stage reserves")
    stage_gpus: Annotated[float, Field(ge=0)] = Field(0.0, description="Ray GPUs a stage reserves")
    stage_placement: Literal["pack", "spread", "strict_pack", "strict_spread"] = Field(
        "pack", description="stages on nodes: few or many if possible, one or all different in any case"
    )
    stage_timeout: Annotated[float, Field(gt=0)] = Field(
        5.0, description="seconds a stage may leave pings unanswered before it is replaced"
    )
    replace_timeout: Annotated[float, Field(gt=0)] = Field(
        600.0, description="seconds in which a lost stage must be replaced, or else its whole pipeline is"
    )
    transport: Literal["auto", "unix", "tcp", "nccl", "gloo"] = Field(
        "auto",
        description="between stages: unix or tcp sockets alone; nccl or gloo for hidden states; auto is nccl between "
        "GPUs that have it, and sockets otherwise",
    )
    default_max_tokens: Annotated[int, Field(ge=1)] = Field(1024, description="for requests without max_tokens")
    max_body_mib: Annotated[float, Field(gt=0)] = Field(4.0, description="largest request body, MiB")
    grace: Annotated[float, Field(ge=0)] = Field(5.0, description="seconds running requests get at shutdown")
    router_patience: Annotated[float, Field(gt=0)] = Field(
        60.0, description="seconds a request waits for a router that is being replaced before it fails with 503"
    )
    heads: str | None = Field(None, description="file of the model's induction heads, for pld-plus-a")
    draft_model: str | None = Field(None, description="directory or hub id of draft-model's small model; 'demo' works")
    drafter: dict[str, Any] = Field(default_factory=dict, description="further settings of draft-model")
    simulate: str | None = Field(
        None,
        description="no model: stages sleep as a profile says (70b-h100x2, 70b-h100x4, 70b-h100x8, flat10, or a JSON "
        "file) and write known text; model then gives tokenizer and vocabulary, the profile stages",
    )
    simulate_answers: str | None = Field(
        None, description="JSON lines of recorded conversations that a simulated target answers with"
    )
    anpd: dict[str, Any] = Field(default_factory=dict, description="settings of anpd")
    lookahead: dict[str, Any] = Field(default_factory=dict, description="settings of lookahead")
    pld: dict[str, Any] = Field(default_factory=dict, description="settings of pld")
    pld_plus: dict[str, Any] = Field(default_factory=dict, description="settings of pld-plus-h and pld-plus-a")
    retrieval: str | None = Field(
        None,
        repr=False,  # may hold a password
        description="what requests look up: a snapshot's folder, a store's folder or redis://.. URL, text or JSON "
        "lines, builtin, or none; by default builtin for the demo model and none for others",
    )
    retrieval_namespace: Annotated[str, Field(pattern=NAMESPACE_PATTERN)] = Field(
        DEFAULT_NAMESPACE, description="namespace of the store that all requests share, those that name none included"
    )
    retrieval_poll: Annotated[float, Field(gt=0)] = Field(
        2.0, description="seconds between two looks at the store; its hints come in between"
    )
    retrieval_cache: str | None = Field(
        None, description="folder on every node for snapshots of the store; in the user's cache by default"
    )
    live: str | list[str] | None = Field(
        None,
        description="namespaces that learn from what their own requests were answered, comma-separated; none by "
        "default; without a store what they learn is lost at restart",
    )
    live_tokens: Annotated[int, Field(ge=1)] = Field(200_000, description="newest live text looked up beside snapshots")
    live_interval: Annotated[float, Field(gt=0)] = Field(5.0, description="seconds between two takes of live text")
    live_compact_tokens: Annotated[int, Field(ge=1)] = Field(
        1_000_000, description="live text beyond which a new snapshot is made of it and published"
    )
    rest: dict[str, Any] = Field(default_factory=dict, description="settings of rest")
    spectra: dict[str, Any] = Field(default_factory=dict, description="settings of spectra: how its parts share a tree")
    spectra_core: dict[str, Any] = Field(default_factory=dict, description="settings of spectra-core")
    spectra_retrieval: dict[str, Any] = Field(default_factory=dict, description="settings of spectra-retrieval")
    suffix: dict[str, Any] = Field(default_factory=dict, description="settings of suffix")
    token_recycling: dict[str, Any] = Field(default_factory=dict, description="settings of token-recycling")
    successors: dict[str, Any] = Field(default_factory=dict, description="settings both of these share")
    combination: dict[str, Any] = Field(default_factory=dict, description="settings of a+b")
    auto: dict[str, Any] = Field(default_factory=dict, description="settings of auto")

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
