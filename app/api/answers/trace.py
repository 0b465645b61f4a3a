"""Where the tokens of an answer come from: ``choices[].trace`` of requests with ``speculative.trace``."""

from __future__ import annotations

from typing import Any

from app.api.answers.logprobs import TokenTexts
from app.api.piece import TracedStep
from engine.events import StepTrace


def traced_step(step: TracedStep, texts: TokenTexts) -> dict[str, Any]:
    """A step as JSON: its tokens, each with the node that it is, and all nodes of its tree.

    A token without a node was drawn by the target itself: a bonus token, or the first one, behind the prompt. ``nodes``
    is None behind the prompt and beyond what an answer traces.
    """
    draft = step.draft
    accepted = [] if draft is None else draft.accepted
    tokens = [
        {
            "token_id": token,
            "text": texts[token][0],
            "node": accepted[i] if i < len(accepted) else None,
            "source": None if draft is None else draft.source(i),
        }
        for i, token in enumerate(step.token_ids)
    ]
    return {"step": step.number, "tokens": tokens, "nodes": None if draft is None else _nodes(draft, texts)}


def _nodes(draft: StepTrace, texts: TokenTexts) -> list[dict[str, Any]]:
    accepted = {*draft.accepted}
    return [
        {
            "token_id": token,
            "text": texts[token][0],
            "parent": draft.parents[node],
            "sources": _sources(draft, node),
            "accepted": node in accepted,
            "probe": draft.probe[node],
        }
        for node, token in enumerate(draft.tokens)
    ]


def _sources(draft: StepTrace, node: int) -> list[str]:
    """All that proposed a node, its owner first."""
    own = draft.sources[node]
    others = [name for i, name in enumerate(draft.names) if i != own and draft.proposers[node] >> i & 1]
    return [draft.names[own], *others]
