"""``metrics.speculative_decoding`` of a response: sums over its choices, and the trace of their steps on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from app.api.answers.logprobs import TokenTexts
from app.api.choice import CompletionChoice, TracedStep
from engine.events import SourceCounts, StepTrace


def speculative_metrics(choices: Sequence[CompletionChoice], texts: TokenTexts) -> dict[str, Any]:
    """``metrics`` of a response; a trace holds the steps that no earlier part of the response reported."""
    figures = _figures(choices)
    if choices[0].request.trace:
        figures["trace"] = new_steps(choices[0], texts)
    return {"speculative_decoding": figures}


def _figures(choices: Sequence[CompletionChoice]) -> dict[str, Any]:
    """Sums over choices.

    Every decode forward counts as a step, also one without drafts; the bonus token counts as accepted length.
    ``acceptance_histogram`` counts the steps that accepted 0 to ``num_spec_tokens`` drafted tokens.
    """
    every = [choice.final_stats() for choice in choices]
    steps = sum(s.target_forwards for s in every)
    drafted, accepted = sum(s.drafted_tokens for s in every), sum(s.accepted_tokens for s in every)
    by_source: dict[str, SourceCounts] = {}
    for stats in every:
        for name, counts in stats.by_source.items():
            by_source[name] = counts.plus(by_source[name]) if name in by_source else counts
    limit = max(choice.max_nodes for choice in choices)
    columns = zip_longest([0] * (limit + 1), *(stats.accepted_steps for stats in every), fillvalue=0)
    figures: dict[str, Any] = {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "num_spec_steps": steps,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        "num_spec_tokens": limit,
        "acceptance_histogram": [sum(column) for column in columns],
        "by_source": {name: counts.named for name, counts in by_source.items()},
    }
    decisions = sum((Counter(stats.decisions) for stats in every), Counter())
    return figures | ({"decisions": dict(decisions)} if decisions else {})


def new_steps(choice: CompletionChoice, texts: TokenTexts) -> list[dict[str, Any]]:
    """The traced steps that no earlier part of the response reported."""
    return [_step(step, texts) for step in choice.take_trace()]


def _step(step: TracedStep, texts: TokenTexts) -> dict[str, Any]:
    """A step's tokens, each with its node, and the nodes of its tree.

    The target itself drew a token without a node: a bonus token, or the first one after the prompt.
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
    """All sources that proposed a node, its owner first."""
    own = draft.sources[node]
    others = [name for i, name in enumerate(draft.names) if i != own and draft.proposers[node] >> i & 1]
    return [draft.names[own], *others]
