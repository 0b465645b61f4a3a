"""The predicted output of a request: its field, its token ids, and what the answer says became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import field_validator

from app.api.requests.parsing import Strict, shorten, texts_of
from app.api.requests.tokenizing import TextEncoder
from engine.errors import PromptTooLongError, RequestError
from engine.events import RequestStats, SourceCounts
from speculators.methods import reads_prediction

SOURCE = "prediction"  # of drafts
NONE = SourceCounts(0, 0)


class PredictedOutput(Strict):
    """A text that the answer is expected to be much like, as OpenAI takes it; text parts are joined as they are."""

    type: Literal["content"]
    content: str

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        return "".join(texts_of(value)) if isinstance(value, list) else value


def weight_of_prediction(prediction: PredictedOutput | None) -> int:
    """Work of tokenising it, in bytes whose parsing takes as long."""
    return 0 if prediction is None else 4 * len(prediction.content)


def prediction_ids(
    prediction: PredictedOutput | None, method: str | None, encoder: TextEncoder, max_model_len: int
) -> list[int]:
    """The ids of a body's prediction; none without one. ``method``: None unless the body names one that drafts.

    Raises:
        RequestError: the method drafts from no prediction.
        PromptTooLongError: the prediction cannot fit into the context.
    """
    if prediction is None or not prediction.content:
        return []
    if method and not reads_prediction(method) and method.strip() != "autoregressive":
        raise RequestError(
            f"speculative.method is {shorten(method)}, which drafts from no prediction; with one it must be auto or "
            "have prediction among the methods that it joins, such as prediction+suffix",
            "speculative.method",
        )
    ids = encoder.encode(prediction.content, "prediction", max_model_len, add_special_tokens=False)
    if len(ids) > max_model_len:
        raise PromptTooLongError(
            f"prediction has {len(ids)} tokens; this model's maximum context length is {max_model_len} tokens",
            "prediction",
        )
    return ids


def prediction_usage(every: Sequence[RequestStats | None]) -> dict[str, int]:
    """``completion_tokens_details`` of answers to a request with a prediction: tokens of it that were drafted and
    accepted, and drafted and not accepted, over all choices."""
    counts = [stats.by_source.get(SOURCE, NONE) for stats in every if stats is not None]
    accepted = sum(one.proposed_accepted for one in counts)
    return {
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": sum(one.proposed for one in counts) - accepted,
    }
