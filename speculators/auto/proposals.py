"""Proposals of sources for one step, and the nodes that are taken of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.protocol import Branch, RequestView
from speculators.auto.lane import DraftPlan, LaneCosts
from speculators.auto.prices import Price
from speculators.auto.sharing import share_out
from speculators.auto.streams import ALL, PRIOR_STEPS, DraftRecord, StreamState
from speculators.mixing.merged import first_nodes, ranked

READ_GAIN = 0.01  # tokens that one more answer adds to later drafts, as a share of the accepted tokens per step
PROBE_GAIN = 0.35  # tokens a step that probes are expected to gain, before the first steps of a request


@dataclass(slots=True)
class Proposal:
    """What the sources propose for one request, and the nodes that are taken."""

    place: int  # among the requests that are asked
    view: RequestView
    state: StreamState
    budget: int  # nodes
    arm: int
    branches: list[Branch] = field(default_factory=list)
    taken: list[Branch] = field(default_factory=list)
    n_nodes: int = 0  # of ``taken``


def take_nodes(
    name: str, proposals: Sequence[Proposal], lane: LaneCosts | None, plan: DraftPlan | None, n_read: int
) -> None:
    """Take the nodes that are worth it over all proposals, all of them without a plan.

    ``name`` is the source of merged branches; ``n_read`` rows are read back without any node.
    """
    pairs = [(one, branch) for one in proposals for branch in ranked(name, one.branches, one.budget)]
    counts = [len(branch.tokens) for _, branch in pairs]
    price = None
    if lane is not None and plan is not None:
        price = lane.price(plan.price.batch, sum(len(branch.tokens) for one in proposals for branch in one.branches))
        if pairs:
            drafts = [(branch, one.state.factors, one.arm == ALL) for one, branch in pairs]
            limit = price.plain + plan.room - lane.host_seconds(lane.asked)
            counts = share_out(drafts, n_read, price, plan.token, READ_GAIN * lane.accepted, limit)
    for (one, branch), count in zip(pairs, counts, strict=True):
        if count:
            one.taken.append(first_nodes(branch, count))
            one.n_nodes += count
    n_taken = sum(counts)
    for one in proposals:
        n, recent = one.n_nodes, one.state.recent_nodes
        one.state.recent_nodes = float(n) if n > recent else recent + 0.25 * (n - recent)
        if len(one.branches) > 1 or one.branches[0].probe:
            n_taken += _take_probes(one, price, 0.0 if plan is None else plan.token, n_taken)
    if price is not None:
        _record(proposals, price)


def _take_probes(proposal: Proposal, price: Price | None, token: float, n_taken: int) -> int:
    """Take the first probes, as long as they cost less than all sources gain; return how many nodes they have.

    A probe claims nothing: it fills dictionaries from which later drafts come.
    """
    room, n = proposal.budget - proposal.n_nodes, 0
    worth = proposal.state.gains[ALL].value(PROBE_GAIN, PRIOR_STEPS) * token
    for probe in proposal.branches:
        if probe.probe:
            more = n + len(probe.tokens)
            if more > room or (price is not None and price.between(n_taken, n_taken + more) > worth):
                break
            proposal.taken.append(probe)
            n = more
    proposal.n_nodes += n
    return n


def _record(proposals: Sequence[Proposal], price: Price) -> None:
    """Record by how much the nodes and read-backs of each draft delay the step."""
    rows = [one.n_nodes + (1 + one.n_nodes if one.arm == ALL else 0) for one in proposals]
    n_nodes = sum(one.n_nodes for one in proposals)
    added = price.seconds(n_nodes, sum(rows) - n_nodes) - price.plain
    for one, n in zip(proposals, rows, strict=True):
        one.state.draft = DraftRecord(one.arm, added * n / max(sum(rows), 1))
