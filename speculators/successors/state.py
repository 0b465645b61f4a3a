"""What the mixed model keeps for one request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.sampling.keys import request_key
from engine.sampling.params import SamplingParams
from engine.tree import IntArray
from speculators.successors.draws import Sampling
from speculators.successors.learning import count_text
from speculators.successors.models import AddressedModel


@dataclass(slots=True)
class SuccessorState:
    """State of one request."""

    addressed: AddressedModel
    slot: int
    sampling: Sampling
    n_begin: int  # tokens of the context when the request began
    n_learnt: int  # tokens of the context that the tables have counted
    n_seen: int  # tokens whose prediction the trusts have learnt from
    array: IntArray  # of the context, and where it lies
    address: int

    def follow(self, array: IntArray) -> None:
        """Note that the context lies in ``array`` now."""
        self.array, self.address = array, array.__array_interface__["data"][0]


def learn_until(state: SuccessorState, context: IntArray, end: int) -> None:
    """Count the tokens before ``end`` that are not counted yet."""
    end = min(end, len(context))
    if state.n_learnt < end:
        count_text(state.addressed.addresses, context[:end], state.n_learnt)
        state.n_learnt = end


def sampling_of(params: SamplingParams) -> Sampling:
    knows_noise = not params.is_greedy and params.verification == "coupled"
    key = request_key(params.seed, params.choice) if knows_noise else 0
    return Sampling(float(params.temperature), np.uint64(key))
