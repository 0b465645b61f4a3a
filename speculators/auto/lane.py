"""Costs of a lane's steps: prices, host work, and the account that drafting is charged to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.protocol import Decision, Outcome, StepTime
from engine.step_cost import StepCosts
from speculators.auto.prices import OUTLIER, Account, Price, Prices
from speculators.auto.streams import ALL, OFF, TEXT, StreamState

CAPACITY = 4.0  # plain steps that drafting may lose at once: an unlucky run of drafts that pay ends within that
TRIAL_CAPACITY = 2.0  # plain steps that trials may lose at once: enough for the first request of a server
RESERVE = 2.0  # plain steps that trials and prompts leave in the account, for drafts that are likely to pay
RESUME = 0.5  # plain steps that an account which could not pay must hold again: less pays for asking but not for nodes
FIRST_HOST = (1e-5, 1e-5, 5e-5)  # seconds of host work per stream and step by arm, before any was measured
FIXED_STREAMS = (0, 16, 8)  # fixed host work of an arm per step, as a multiple of its host work per stream
LEAST_HOST = 1e-6  # seconds: no host does less
HOST_RATE = 0.1  # weight of the newest step in measured host work
HOST_WEIGHTS = (0.0, 1.0, 2.5)  # of host work by arm in the choice: ``all`` also works after the send, unmeasured
HOST_OUTLIER = 4.0  # host work counts as at most so many times the usual, or a plain step: a process may have paused
LANE_RATE = 1 / 32  # weight of the newest step in the accepted tokens of all streams

BUDGET = Decision("off", "budget", False)  # the account does not hold the worst outcome of a draft
PLAIN_DUE = Decision("off", "price", False)  # a plain step measures the price of plain steps


class DraftPlan(NamedTuple):
    """What the next drafts may cost."""

    price: Price
    highest: int  # highest arm that the account can pay for if no node is accepted
    reason: Decision  # why no higher one is allowed
    room: float  # seconds by which the step may be longer than a plain one
    token: float  # seconds per token of the lane now: more nodes must save more
    can_pay_drafter: bool  # whether the account can also pay for the target's drafter


class LaneCosts:
    """The steps of one lane, as they come.

    Args:
        costs: step times that were measured at load.
        loss: share of the time that drafting may lose.
    """

    def __init__(self, costs: StepCosts, loss: float) -> None:
        self.prices = Prices(costs)
        self.account, self.trials = Account(loss, CAPACITY), Account(loss / 2, TRIAL_CAPACITY)
        self.host = [*FIRST_HOST]  # seconds per stream and step by arm; those of ``text`` and ``all`` above ``off``
        self.asked = [0.0, 0.0, 0.0]  # sum of ``StreamState.load`` over the streams asked last, by arm (text: 1 each)
        self.n_steps = 0
        self._is_saving = False  # whether the account could not pay, and must fill before drafts come again
        self.draft_seconds = 0.0  # recent mean time of the target's drafter for one draft
        self.accepted = 0.0  # tokens per stream and step, lately
        self._slowness = 1.0  # seconds of a step over those of a plain one, lately
        self._step = StepTime(0.0, 1, 1, 0.0)  # the last one

    def price(self, batch: int, n_nodes: int = 256) -> Price:
        """Return the price of the next step: for ``batch`` sequences, or those of the last step if they were more."""
        return self.prices.of(max(batch, self._step.n_sequences), self._step.context, n_nodes)

    def share(self, price: Price) -> float:
        """Return the seconds per token of plain decoding: a stream's part of a step, and its host work."""
        return price.plain / price.batch + self.host[OFF]

    def room(self, price: Price) -> float:
        """Return by how many seconds the account allows the next step to be longer than a plain one."""
        return self.account.room(price.batch * price.plain) / price.batch

    def host_seconds(self, asked: Sequence[float]) -> float:
        """Return the seconds of host work that drafts usually take; ``asked`` is the sum of loads by arm."""
        return sum(self.host[arm] * (asked[arm] + FIXED_STREAMS[arm]) for arm in (TEXT, ALL) if asked[arm])

    def arm_costs(self, price: Price, n: int = 0) -> list[float]:
        """Return the cost of host work by arm for a stream, in tokens of plain decoding.

        If ``n`` is above 0, it includes an ``n``-th of the fixed work.
        """
        fixed = [count / n if n else 0.0 for count in FIXED_STREAMS]
        return [
            weight * seconds * (1.0 + more) / self.share(price)
            for weight, seconds, more in zip(HOST_WEIGHTS, self.host, fixed, strict=True)
        ]

    def plan(self, states: Sequence[StreamState]) -> DraftPlan:
        """Return the plan for the next drafts of these streams."""
        price, arms = self.price(len(states)), [state.arm for state in states]
        room, n_all = self.room(price), arms.count(ALL)
        asked = [0.0, arms.count(TEXT), sum(state.load for state in states if state.arm == ALL)]
        most = price.seconds(0, n_all) - price.plain + self.host_seconds(asked)  # lost if no node is accepted
        highest, reason = ALL, BUDGET
        self._is_saving &= room < RESUME * price.plain
        if self.prices.is_plain_due(price.batch, self._step.context):
            highest, reason = OFF, PLAIN_DUE
        elif self._is_saving:
            highest = OFF
        elif most > room:
            highest = TEXT if self.host_seconds([0.0, len(arms) - arms.count(OFF), 0.0]) <= room else OFF
            self._is_saving = highest == OFF
        token = self.share(price) * self._slowness / (1.0 + self.accepted)
        can_pay_drafter = highest == ALL and most + self.draft_seconds * n_all <= room
        return DraftPlan(price, highest, reason, room, token, can_pay_drafter)

    def can_try(self, arm: int, price: Price) -> bool:
        """Return whether a trial may begin; what it costs is charged step by step."""
        most = self.room(price) - RESERVE * price.plain
        return self.trials.room(price.batch * price.plain) > 0.0 and self.host_seconds(_of_one(arm)) < most

    def charge_trial(self, arm: int, seconds: float, price: Price) -> None:
        """Charge the account of trials with a step of which one stream's nodes and read-backs took ``seconds``."""
        self.trials.add(0.0, -price.batch * (seconds + self.host_seconds(_of_one(arm))), price.batch * price.plain)

    def can_read_prompt(self, n_tokens: int, n_waiting: int, price: Price) -> bool:
        """Return whether the account can pay for reading a prompt back, after ``n_waiting`` tokens of others."""
        reserve = RESERVE * price.plain if n_waiting else 0.0  # a single long prompt may take all
        return self.prices.prompt_seconds(n_tokens + n_waiting) <= self.room(price) - reserve

    def charge_prompt(self, n_rows: int) -> None:
        """Charge the account with ``n_rows`` of a prompt that were read back, which delays all streams."""
        price = self.price(1)
        self.account.add(0.0, -price.batch * self.prices.prompt_seconds(n_rows), price.batch * price.plain)

    def charge(self, outcomes: Sequence[Outcome], price: Price, seconds: float) -> None:
        """Charge the account with the step that was answered, and with ``seconds`` of host work after it."""
        step = next((one.step for one in outcomes if one.step is not None), None)
        spent = self._charge_host(price, seconds, is_usual=step is not None and seconds > 0.0)
        mine = [one for one in outcomes if one.step is step and one.tokens and not one.n_read]  # without prompts
        if not mine or step is self._step:
            return
        n_nodes, n_read = sum(len(one.tree) for one in mine), sum(len(one.top_ids) for one in mine)
        if step is not None:
            expected = self.prices.observe(step, is_ours=bool(n_nodes or n_read))
        else:  # Prompt chunks take the same time without drafts, so only the predicted time of nodes is charged.
            n, context = len(mine), self._step.context
            expected = self.prices.of(n, context, n_nodes)
            step = StepTime(expected.seconds(n_nodes, n_read), n, n + n_nodes, context, n_read)
        self._step, self.n_steps = step, self.n_steps + 1
        known = expected.seconds(step.n_rows - step.n_sequences, step.n_read)
        others = known - expected.seconds(n_nodes, n_read)  # what the drafts of other methods add is not ours
        idle = self.host[OFF] * step.n_sequences
        drafter = sum(one.draft_seconds for one in mine)
        self._count_drafts([one for one in mine if one.draft is not None])
        taken = min(step.seconds, OUTLIER * known) - others + drafter + idle
        plain = expected.plain + idle
        n_tokens = sum(len(one.tokens) for one in mine) + step.n_sequences - len(mine)
        self.accepted += LANE_RATE * (n_tokens / step.n_sequences - 1.0 - self.accepted)
        self._slowness += LANE_RATE * ((taken + spent) / plain - self._slowness)
        passed = step.n_sequences * taken
        gained = n_tokens * plain - passed if n_nodes or n_read else 0.0
        self.account.add(passed, gained, step.n_sequences * plain)
        self.trials.add(passed, 0.0, step.n_sequences * plain)

    def _count_drafts(self, drafted: Sequence[Outcome]) -> None:
        for one in drafted:
            rate = LANE_RATE if self.draft_seconds else 1.0  # the first one sets the mean
            self.draft_seconds += rate * (one.draft_seconds - self.draft_seconds)

    def _charge_host(self, price: Price, seconds: float, is_usual: bool) -> float:
        """Charge the account with the host work for drafts, and return its seconds.

        If the step ``is_usual``, its seconds update the usual ones. A step with prompt chunks is not: it is charged
        with at most the usual seconds.
        """
        usual, asked, self.asked = self.host_seconds(self.asked), self.asked, [0.0, 0.0, 0.0]
        spent = max(seconds - self.host[OFF] * price.batch, 0.0)
        spent = min(spent, max(HOST_OUTLIER * usual, price.plain) if is_usual else usual)
        if not usual:
            if is_usual:
                each = min(max(seconds / price.batch, LEAST_HOST), HOST_OUTLIER * self.host[OFF])
                self.host[OFF] += HOST_RATE * (each - self.host[OFF])
            return 0.0
        for arm in (TEXT, ALL):
            if asked[arm] and is_usual:  # in a step with both, both change by the same factor
                factor = 1.0 + HOST_RATE * (max(spent / usual, 1.0 / HOST_OUTLIER) - 1.0)
                self.host[arm] = max(self.host[arm] * factor, LEAST_HOST)
        self.account.add(0.0, -price.batch * spent, price.batch * price.plain)
        return spent


def _of_one(arm: int) -> list[float]:
    """Return the loads of one stream that drafts by an arm."""
    return [float(arm == one) for one in (OFF, TEXT, ALL)]
