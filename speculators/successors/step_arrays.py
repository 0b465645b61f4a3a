"""What the mixed model keeps of requests, and the arrays of a step for compiled code: models, answers and drafts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.protocol import Outcome
from engine.sampling.keys import request_key
from engine.sampling.params import SamplingParams
from engine.top_ids import TopIds
from engine.tree import FloatArray, IntArray
from retrieval_store.index.addresses import Addresses
from speculators.successors.batch import N_LEARN_COLUMNS
from speculators.successors.draws import Sampling
from speculators.successors.growth import addresses_of_tree, make_successor_tree
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


_NO_IDS, _NO_WEIGHTS = np.empty((0, 0), np.int32), np.empty((0, 0), np.float32)


class StepAnswers:
    """Collects trees and ids of several requests; ``requests`` are rows for ``batch.learn_steps``, flat."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._ids: list[IntArray] = []
        self._logprobs: list[FloatArray] = []
        self._width = 0

    def add(self, outcome: Outcome) -> int | None:
        """Add what was read back; return the number of rows.

        Returns None, and adds nothing, unless there are probabilities after the root and every node, as many as for
        the other requests.
        """
        top = outcome.top_ids
        if not top:
            return 0
        if not isinstance(top, TopIds) or top.logprobs is None:
            return None
        tokens, logprobs = outcome.tree.tokens, top.logprobs
        n_rows: int = len(logprobs)
        width: int = logprobs.shape[1]
        if n_rows != len(tokens) + 1:
            return None
        if not self._ids:
            self._width = width
        elif width != self._width:
            return None
        self._tokens += tokens
        self._parents += outcome.tree.parents
        self._ids.append(top.ids)
        self._logprobs.append(logprobs)
        return n_rows

    def arrays(self) -> tuple[npt.NDArray[np.int64], IntArray, IntArray, FloatArray]:
        """Return requests ``[n, N_LEARN_COLUMNS]``, trees ``[2, n_nodes]``, ids and probabilities ``[n_rows, k]``."""
        requests = np.array(self.requests, np.int64).reshape(-1, N_LEARN_COLUMNS)
        trees = np.array(self._tokens + self._parents, np.int32).reshape(2, -1)
        if not self._ids:
            return requests, trees, _NO_IDS, _NO_WEIGHTS
        return requests, trees, np.concatenate(self._ids), np.exp(np.concatenate(self._logprobs))


class ModelSlots:
    """The models of live requests, and how the target draws for them: one slot per request.

    Attributes:
        models: ``[n_slots, n_words]``, addresses of models.
        settings: ``[n_slots, 2]``: temperature, and the trust in recent tokens.
        noise_keys: ``[n_slots]``: 0 if the target's noise is unknown.
    """

    def __init__(self) -> None:
        self.models: Addresses = np.zeros((0, 0), np.int64)
        self.settings = np.zeros((0, 2), np.float64)
        self.noise_keys = np.zeros(0, np.uint64)
        self._free: list[int] = []

    def take(self, addresses: Addresses, sampling: Sampling, recent_trust: float) -> int:
        """Return a slot for a request that begins."""
        if not self._free:
            self._grow(len(addresses))
        slot = self._free.pop()
        self.models[slot] = addresses
        self.settings[slot] = sampling.temperature, recent_trust
        self.noise_keys[slot] = sampling.noise_key
        return slot

    def release(self, slot: int) -> None:
        """Make the slot of a finished request available."""
        self._free.append(slot)

    def _grow(self, n_words: int) -> None:
        """Double the number of slots, all of which are taken."""
        n = len(self.noise_keys)
        added = max(n, 16)
        self.models = np.vstack([self.models.reshape(n, n_words), np.zeros((added, n_words), np.int64)])
        self.settings = np.vstack([self.settings, np.zeros((added, 2))])
        self.noise_keys = np.append(self.noise_keys, np.zeros(added, np.uint64))
        self._free = [*range(n + added - 1, n - 1, -1)]


class DraftRoom:
    """Room for the trees of ``n_trees`` requests with ``n_nodes`` nodes each, and for the results of a step."""

    def __init__(self, n_trees: int, n_nodes: int) -> None:
        self.n_trees, self.n_nodes = n_trees, n_nodes
        self.trees = [make_successor_tree(n_nodes) for _ in range(n_trees)]
        self.addresses = np.array([addresses_of_tree(tree) for tree in self.trees])
        self.sizes = np.zeros(n_trees, np.int32)
        self.drafted = np.zeros((3, n_trees * n_nodes), np.int32)
        self.estimates = np.zeros((2, n_trees * n_nodes), np.float32)
