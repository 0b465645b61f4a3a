"""What the HTTP processes take and show."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.config.field_group import AtLeastOne, FieldGroup


class HttpFields(FieldGroup):
    """What clients may send, and who answers them."""

    TITLE: ClassVar[str] = "HTTP"

    ingress_replicas: AtLeastOne = Field(1, description="HTTP replicas, each a process")
    default_max_tokens: AtLeastOne = Field(1024, description="tokens of an answer whose request gives no max_tokens")
    generation_config: Literal["auto", "none"] = Field(
        "auto",
        description="what sampling fields are that a request leaves out: auto: as the model's generation_config.json "
        "says, as in vLLM; none: OpenAI's defaults",
    )
    max_body_mib: Annotated[float, Field(gt=0)] = Field(4.0, description="MiB of the largest request body")
    edge_resources: dict[str, float] = Field(
        default_factory=dict,
        description="custom Ray resources that router, HTTP processes and retrieval ask for, so that they run on nodes "
        """which have them, as in '{"edge": 0.01}'""",
    )
    playground: bool = Field(
        True, description="a page to try the server with at /, and one for operators at /operator, both without a key"
    )
