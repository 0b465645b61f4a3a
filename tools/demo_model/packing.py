"""Documents as token batches: an endless, resumable stream of packed rows for training, fixed rows for evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from tools.demo_model.data import DOMAINS, Document, Domain
from tools.demo_model.tokenizer import BOS_ID, PAD_ID

# Shares of training tokens. Chat is the hardest domain and has the fewest instructions.
SHARES: dict[Domain, float] = {"chat": 0.45, "math": 0.25, "code": 0.30}
CONTINUED = 0.1  # share of documents that follow the previous one without <|bos|>, as a further turn
Encoded = dict[Domain, list[np.ndarray]]  # per domain: uint16 token ids, one array [n] a document


def encode(tokenizer: Tokenizer, documents: list[Document]) -> Encoded:
    """Token ids of all documents; their texts carry the special tokens themselves."""
    encodings = tokenizer.encode_batch([d.text for d in documents], add_special_tokens=False)
    encoded: Encoded = {domain: [] for domain in DOMAINS}
    for document, encoding in zip(documents, encodings, strict=True):
        encoded[document.domain].append(np.array(encoding.ids, dtype=np.uint16))
    return encoded


class PackedStream:
    """Endless packed batches; domains are mixed by `SHARES`, each shuffled anew in every epoch.

    A domain without documents is left out.
    """

    def __init__(self, encoded: Encoded, seed: int) -> None:
        self._encoded = encoded
        self._rng = np.random.default_rng(seed)
        self._domains = [domain for domain in DOMAINS if encoded[domain]]
        self._orders: dict[Domain, list[int]] = {domain: [] for domain in self._domains}
        self._buffer = np.empty(0, dtype=np.uint16)
        # Documents are drawn, tokens are wanted: divide each share by its domain's mean length.
        draws = [SHARES[d] / np.mean([len(ids) for ids in encoded[d]]) for d in self._domains]
        self._draws = np.array(draws) / sum(draws)

    @property
    def n_tokens(self) -> int:
        """Tokens of all documents: one epoch."""
        return sum(len(ids) for documents in self._encoded.values() for ids in documents)

    def batch(self, rows: int, length: int) -> torch.Tensor:
        """The next `rows` packed rows, int64 [rows, length + 1]: inputs and targets overlap by all but one."""
        wanted = rows * (length + 1)
        parts, have = [self._buffer], len(self._buffer)
        while have < wanted:
            parts.append(self._next_document())
            have += len(parts[-1])
        tokens = np.concatenate(parts)
        self._buffer = tokens[wanted:]
        return torch.from_numpy(tokens[:wanted].astype(np.int64)).view(rows, length + 1)

    def _next_document(self) -> np.ndarray:
        domain = self._domains[int(self._rng.choice(len(self._domains), p=self._draws))]
        if not self._orders[domain]:
            self._orders[domain] = self._rng.permutation(len(self._encoded[domain])).tolist()
        ids = self._encoded[domain][self._orders[domain].pop()]
        is_turn = domain != "code" and self._rng.random() < CONTINUED
        return ids[1:] if is_turn else ids

    def state(self) -> dict[str, Any]:
        """All that `restore` needs to go on with the very next token."""
        return {
            "rng": self._rng.bit_generator.state,
            "orders": self._orders,
            "buffer": self._buffer,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self._rng.bit_generator.state = state["rng"]
        self._orders, self._buffer = state["orders"], state["buffer"]


def padded(documents: list[np.ndarray], length: int) -> torch.Tensor:
    """One document a row, cut and padded to `length`: int64 [n_documents, length]."""
    rows = torch.full((len(documents), length), PAD_ID)
    for row, ids in zip(rows, documents, strict=True):
        assert ids[0] == BOS_ID
        row[: len(ids)] = torch.from_numpy(ids[:length].astype(np.int64))
    return rows
