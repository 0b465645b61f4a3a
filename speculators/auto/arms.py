"""Which arm each stream of a step takes, and what it has gained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.protocol import Outcome, RequestView
from speculators.auto.lane import FIXED_STREAMS, LaneCosts
from speculators.auto.prices import Price
from speculators.auto.streams import ALL, OWN_FADE, TEXT, DraftRecord, StreamState
from speculators.mixing.fault_isolation import FaultIsolated

TRIAL = 8  # steps of a trial: sources that learn from answers draft well after some steps
LOOK = 8  # tokens between two looks back: as many as a draft has


class Observation(NamedTuple):
    """The answer to the last draft of a request."""

    view: RequestView
    state: StreamState
    outcome: Outcome
    draft: DraftRecord | None  # None: no source was asked


def count_step(one: Observation, lane: LaneCosts, price: Price) -> None:
    """Add the gain of a step to the means of its request and scope."""
    state, draft = one.state, one.draft
    drafter_seconds, caught_up = state.draft_seconds, state.drafter_caught_up
    state.draft_seconds = None if one.outcome.draft is None else one.outcome.draft_seconds
    state.drafter_caught_up = drafter_seconds is None
    if one.outcome.prompt_top_ids is not None:
        lane.charge_prompt(one.outcome.n_read)
    if one.outcome.tokens:
        state.n_waiting = 0
    if one.outcome.n_read:
        return  # a chunk of a prompt
    state.n_steps += 1
    if draft is not None:
        has_drafter = draft.arm == ALL and drafter_seconds is not None
        cost = draft.cost + (drafter_seconds or 0.0) * has_drafter
        n_accepted, delay = len(one.outcome.accepted), cost / lane.share(price)
        if not has_drafter or state.scope.prefers_drafter:  # else the arm continues without it
            state.count(draft.arm, n_accepted - delay)
        if draft.arm == ALL and not (has_drafter and caught_up):  # waiting rows are read in any case
            state.scope.count_all(1 + n_accepted, 1.0 + delay, has_drafter)
        if len(one.outcome.tree):
            state.calibrate(draft.arm, one.outcome.tree, one.outcome.accepted)
        if state.trial and state.arm == draft.arm:
            lane.charge_trial(draft.arm, cost, price)
    if state.trial and (state.has_begun_all or state.arm == TEXT):
        state.trial -= 1


def look_back(seen: Sequence[Observation], looking: Sequence[FaultIsolated], lane: LaneCosts, price: Price) -> None:
    """Count what a draft from the text would have gained where it was not asked for one, ``LOOK`` tokens ago."""
    due: list[Observation] = []
    for one in seen:
        n = len(one.view.context)
        if one.draft is not None and one.draft.arm == TEXT:
            one.state.n_looked = n
        elif n - one.state.n_looked >= LOOK:
            one.state.n_looked = n
            due.append(one)
    for part in looking if due else ():
        found = part.look_back([one.view for one in due], [LOOK] * len(due))
        node = price.between(0, LOOK) / LOOK
        for one, (n_drafted, n_right) in zip(due, found, strict=True):
            cost = node * min(n_drafted, n_right + 1) / lane.share(price)
            n_steps = LOOK / (1.0 + n_right)  # that the text took at this rate
            one.state.count(TEXT, n_right - cost * n_steps, n_steps)


def choose(states: Sequence[StreamState], live: Iterable[StreamState], arms: Sequence[int], lane: LaneCosts) -> None:
    """Choose the arms of the next drafts among ``arms``, and start a trial of all sources where the account allows one.

    ``live`` are all requests, also those of other steps.
    """
    tried, price = arms[-1], lane.price(len(states))
    costs = lane.arm_costs(price)
    for state in states:
        state.choose(arms, costs)
    for arm in reversed(arms):
        users = [state for state in states if state.arm == arm and not state.trial]
        if sum(state.surplus for state in users) < FIXED_STREAMS[arm] * costs[arm]:  # not worth what a step takes
            limit = 0.0
        elif arm == ALL:  # as many as the account can pay for, or none could begin
            limit = lane.room(price) / lane.host[ALL] - FIXED_STREAMS[ALL]
        else:
            continue
        load = 0.0
        for state in sorted(users, key=lambda state: -state.surplus):
            load += state.load
            if load > limit:
                state.take_next_best(costs)
    for state in states:
        state.set_factors()
        if state.arm == tried:
            state.last_trial = lane.n_steps
        if state.arm != ALL:
            state.gains[ALL].fade(OWN_FADE)  # nothing new is learnt about it, and the scope counts again
    idle = [state for state in states if state.arm != tried]
    is_trying = any(state.trial for state in live)  # one at a time
    if idle and not is_trying and lane.can_try(tried, price):
        min(idle, key=lambda state: state.last_trial).try_arm(tried, TRIAL, lane.n_steps)
