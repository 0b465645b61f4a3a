"""Where the tokens of an answer come from: ``metrics.speculative_decoding.trace`` of requests that want to see it."""

from __future__ import annotations

from typing import Any

from app.api.answers.logprobs import TokenTexts
from app.api.choice import CompletionChoice, TracedStep
from engine.events import StepTrace


def untold_steps(choice: CompletionChoice, texts: TokenTexts) -> list[dict[str, Any]]:
    """The steps that no earlier part of the response told, as JSON."""
    return [_step(step, texts) for step in choice.take_trace()]


def _step(step: TracedStep, texts: TokenTexts) -> dict[str, Any]:
    """A step's tokens, each with the node that it is, and the nodes of its tree.

    A token without a node was drawn by the target itself: a bonus token, or the first one, behind the prompt.
    """
    draft = step.draft
    accepted = [] if draft is None else draft.accepted
    tokens = [
        {"token_id": token, "text": texts[token][0], "node": accepted[i] if i < len(accepted) else None}
        for i, token in enumerate(step.token_ids)
    ]
    return {"step": step.number, "tokens": tokens, "nodes": [] if draft is None else _nodes(draft, texts)}


def _nodes(draft: StepTrace, texts: TokenTexts) -> list[dict[str, Any]]:
    accepted = {*draft.accepted}
    return [
        {
            "token_id": token,
            "text": texts[token][0],
            "parent": draft.parents[node],
            "depth": draft.depths[node],
            "sources": _sources(draft, node),
            "probability": draft.scores[node],
            "probe": draft.probe[node],
            "accepted": node in accepted,
        }
        for node, token in enumerate(draft.tokens)
    ]


def _sources(draft: StepTrace, node: int) -> list[str]:
    """All that proposed a node, its owner first."""
    own = draft.sources[node]
    others = [name for i, name in enumerate(draft.names) if i != own and draft.proposers[node] >> i & 1]
    return [draft.names[own], *others]
