"""Arrays that compiled code reads and writes for all requests of a step: their models, and the drafts."""

from __future__ import annotations

import numpy as np

from retrieval_store.index.addresses import Addresses
from speculators.successors.draws import Sampling
from speculators.successors.growth import addresses_of_tree, make_successor_tree


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
