"""Fields for drafting: methods, drafters, and the texts that are looked up."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from app.config.field_group import NAMESPACE_PATTERN, AtLeastOne, FieldGroup, advanced
from app.inputs.stores import DEFAULT_NAMESPACE


class SpeculationFields(FieldGroup):
    """How the tokens that a step verifies are drafted."""

    TITLE: ClassVar[str] = "speculation"

    method: str = Field("auto", description="speculation method of requests that name none")
    methods: str | list[str] | None = Field(
        None, description="methods that requests may name, comma-separated (default: all)"
    )
    max_nodes: Annotated[int, Field(ge=0, le=4096)] | None = Field(
        None, description="drafted nodes per step (default: 63 on cuda; on a CPU a server measures it, else 64)"
    )
    drafter: str | None = Field(
        None,
        description="directory or hub id (ID@REVISION) of a drafter trained for the model: Medusa, EAGLE, "
        "ParallelSpec, P-EAGLE, DFlash",
    )
    drafter_options: dict[str, Any] = advanced(
        dict, "depth and beam of the drafter's trees; layers it reads, if its checkpoint names none: [1, 15, 28]"
    )
    draft_model: str | None = Field(
        None, description="directory or hub id (ID@REVISION) of the small model of method draft-model"
    )
    heads: str | None = advanced(
        None, "file of the model's induction heads for pld-plus-a (default: found at first use, then cached)"
    )
    speculator_actors: Annotated[int, Field(ge=0)] = advanced(
        0, "separate processes that draft; 0: the router's process drafts"
    )
    speculator_gpus: Annotated[float, Field(ge=0)] = advanced(0.0, "Ray GPUs that each of these processes reserves")
    draft_timeout: Annotated[float, Field(gt=0)] = advanced(
        2.0, "seconds after which a step continues without the draft of such a process"
    )


class RetrievalFields(FieldGroup):
    """Texts that requests draft from, and namespaces that learn from answers."""

    TITLE: ClassVar[str] = "retrieval"

    retrieval: str | None = Field(
        None,
        repr=False,  # may hold a password
        description="texts to draft from: a snapshot or store (folder or redis:// URL), text or JSON lines, builtin, "
        "or none (default: builtin in a server of the default model, else none)",
    )
    retrieval_namespace: Annotated[str, Field(pattern=NAMESPACE_PATTERN)] = advanced(
        DEFAULT_NAMESPACE, "namespace of the store that all requests share"
    )
    retrieval_cache: str | None = advanced(
        None, "folder on every node for the store's snapshots (default: in the user's cache)"
    )
    retrieval_poll: Annotated[float, Field(gt=0)] = advanced(
        2.0, "seconds between two looks at the store for snapshots and live text"
    )
    retrieval_grace: Annotated[float, Field(ge=0, le=31_536_000)] = advanced(
        3600.0, "seconds that the store keeps a replaced version, for rollbacks"
    )
    live: str | list[str] | None = Field(
        None, description="namespaces that learn from the answers to their own requests, comma-separated"
    )
    live_tokens: AtLeastOne = advanced(
        200_000, "newest live tokens that are looked up; five times as many become a new snapshot"
    )
