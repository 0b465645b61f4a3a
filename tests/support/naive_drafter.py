"""Trained drafters recomputed from the whole text for every draft: float64, row by row, no cache, no torch.

The oracle of the networks: it shares only the names of weights with them.
"""

from __future__ import annotations

import cmath
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.support.tiny_drafters import TinyDrafter

ROOT = -1
Tree = Sequence[tuple[int, int]]  # parent (ROOT: the last committed token) and token of every node
Sees = np.ndarray  # bool [rows, rows]


@dataclass(frozen=True, slots=True)
class NaiveRows:
    """Rows of one sequence: embeddings ``[n, hidden]``, states ``[n, width]`` or none, positions ``[n]``."""

    embedded: np.ndarray
    states: np.ndarray | None
    positions: list[int]

    def __add__(self, other: NaiveRows) -> NaiveRows:
        states = None if self.states is None else np.concatenate((self.states, other.states))
        embedded = np.concatenate((self.embedded, other.embedded))
        return NaiveRows(embedded, states, self.positions + other.positions)


class NaiveDrafter:
    """Scores of drafts, given committed tokens x_0 .. x_r and the target's states at positions 0 .. r - 1."""

    def __init__(self, drafter: TinyDrafter) -> None:
        self.spec, self.shape = drafter.spec, drafter.spec.layers
        self.w = drafter.weights
        self.embedding = self.w.get("embed.weight", drafter.embedding)
        self.head = self.w.get("head.weight", drafter.rows)

    def medusa(self, states: np.ndarray) -> np.ndarray:
        """``[n_heads, vocab]``."""
        scored = []
        for head in range(self.spec.n_heads):
            u = states[-1]
            for block in range(self.spec.n_head_layers):
                u = u + silu(self.linear(f"heads.{head}.blocks.{block}", u))
            scored.append(self.w.get(f"heads.{head}.out.weight", self.head) @ u)
        return np.stack(scored)

    def eagle(self, tokens: list[int], states: np.ndarray, tree: Tree) -> np.ndarray:
        """``[1 + nodes, vocab]``: scores of the root's children, then of every node's."""
        return np.stack([self.scores(self.along(tokens, states, path_to(tree, node)))[-1] for node in nodes_of(tree)])

    def along(self, tokens: list[int], states: np.ndarray, path: list[int]) -> np.ndarray:
        """Outputs of all rows, the real ones and those of a drafted path."""
        rows = self.real_rows(tokens, states)
        for token in path:
            last = self.outputs(rows, causal(len(rows.positions)))[-1:]
            if self.spec.norm_output:
                last = self.norm("norm", last)
            rows = rows + NaiveRows(self.embedding[[token]], last, [rows.positions[-1] + 1])
        return self.outputs(rows, causal(len(rows.positions)))

    def parallel(self, tokens: list[int], states: np.ndarray) -> np.ndarray:
        """``[n_drafts, vocab]`` of ParallelSpec and P-EAGLE."""
        rows = self.real_rows(tokens, states)
        for mask in range(self.spec.n_drafts - 1):
            if self.spec.method == "p-eagle":
                embedded, state = self.embedding[self.spec.mask_token_id], self.fuse(self.w["mask_state"][None])
            else:
                embedded = self.w["mask_embeddings"][mask]
                state = self.w.get("mask_state", np.zeros(self.spec.target_hidden_size))[None]
            rows = rows + NaiveRows(embedded[None], state, [rows.positions[-1] + 1])
        return self.scores(self.outputs(rows, causal(len(rows.positions))))[-self.spec.n_drafts :]

    def dflash(self, tokens: list[int], states: np.ndarray, tree: Tree) -> tuple[np.ndarray, np.ndarray | None]:
        """``[1 + nodes, vocab]`` as of ``eagle``, and with a confidence head ``[1 + nodes]`` chances of acceptance."""
        spec, root = self.spec, len(tokens) - 1
        n_slots = spec.n_drafts + (0 if spec.sample_from_anchor else 1)
        hidden = self.embedding[[tokens[-1]] + [spec.mask_token_id] * (n_slots - 1)]
        fused = self.norm("hidden_norm", self.fuse(states))
        positions = list(range(root + n_slots))
        sees = np.ones((n_slots, root + n_slots), dtype=bool)
        if spec.causal_block:
            sees[:, root:] = causal(n_slots)
        for i in range(self.shape.n_layers):
            inputs = np.concatenate((fused, self.norm(f"layers.{i}.input_norm", hidden)))
            hidden = self.layer(i, hidden, inputs, positions, sees)
        hidden = self.norm("norm", hidden)[-spec.n_drafts :]
        paths = [path_to(tree, node) for node in nodes_of(tree)]
        scored = [self.markov(hidden, [tokens[-1], *path]) for path in paths]
        chances = [self.confidence(hidden[len(path)], [tokens[-1], *path][-1]) for path in paths]
        return np.stack(scored), np.array(chances) if spec.has_confidence else None

    def markov(self, hidden: np.ndarray, path: list[int]) -> np.ndarray:
        """Scores of what follows a path, which begins with the last committed token."""
        scored = hidden[len(path) - 1] @ self.head.T
        if not self.spec.markov_rank:
            return scored
        state, rank = np.zeros(self.spec.markov_rank), self.spec.markov_rank
        for depth, token in enumerate(path):
            pair = latent = self.w["markov.w1"][token]
            if self.spec.markov_head == "gated":
                latent = sigmoid(self.linear("markov.gate", np.concatenate((hidden[depth], pair)))) * pair
            if self.spec.markov_head == "rnn":
                joint = self.linear("markov.joint", np.concatenate((state, pair, hidden[depth])))
                keep = sigmoid(joint[:rank])
                state = keep * state + (1 - keep) * np.tanh(joint[rank : 2 * rank])
                latent = np.tanh(joint[2 * rank :])
        return scored + self.w["markov.w2"] @ latent

    def confidence(self, hidden: np.ndarray, previous: int) -> float:
        if not self.spec.has_confidence:
            return 0.0
        if self.spec.confidence_with_markov:
            hidden = np.concatenate((hidden, self.w["markov.w1"][previous]))
        return float(sigmoid(self.linear("confidence", hidden))[0])

    def real_rows(self, tokens: list[int], states: np.ndarray) -> NaiveRows:
        """Rows of all committed tokens: of pairs, or where the drafter reads no states, of tokens."""
        if not self.spec.reads_states:
            return NaiveRows(self.embedding[tokens], None, list(range(len(tokens))))
        n = len(tokens) - 1
        return NaiveRows(self.embedding[tokens[1:]], self.fuse(states[:n]), list(range(n)))

    def fuse(self, states: np.ndarray) -> np.ndarray:
        if not self.spec.taps:
            return states
        if self.spec.norm_before_fc:
            states = self.norm("fc_norm", states)
        if self.spec.fc_norm:
            width = self.spec.target_hidden_size
            parts = [states[:, i * width : (i + 1) * width] for i in range(len(self.spec.taps))]
            states = np.concatenate([self.norm(f"fc_norms.{i}", part) for i, part in enumerate(parts)], axis=1)
        return self.linear("fc", states)

    def outputs(self, rows: NaiveRows, sees: Sees) -> np.ndarray:
        """The last layer's outputs of all rows but DFlash's."""
        eagle3, normed = bool(self.spec.taps), self.spec.method == "parallelspec-medusa"
        hidden = rows.embedded
        if not eagle3 and rows.states is not None:
            hidden = self.linear("fc", np.concatenate((rows.embedded, rows.states), axis=1))
        for i in range(self.shape.n_layers):
            inputs = self.norm(f"layers.{i}.input_norm", hidden) if normed or i > 0 else hidden
            if eagle3 and i == 0:
                state = self.norm("layers.0.hidden_norm", rows.states)
                hidden = state if self.spec.norm_before_residual else rows.states
                inputs = np.concatenate((self.norm("layers.0.embed_norm", rows.embedded), state), axis=1)
            hidden = self.layer(i, hidden, inputs, rows.positions, sees)
        return hidden

    def scores(self, hidden: np.ndarray) -> np.ndarray:
        normed = bool(self.spec.taps) or self.spec.method == "parallelspec-medusa"
        return (self.norm("norm", hidden) if normed else hidden) @ self.head.T

    def layer(self, i: int, residual: np.ndarray, inputs: np.ndarray, positions: list[int], sees: Sees) -> np.ndarray:
        """The last ``len(residual)`` of ``inputs`` are queries, all of them keys."""
        name, shape = f"layers.{i}", self.shape
        queries = self.heads(f"{name}.q", inputs, positions)[-len(residual) :]
        keys = self.heads(f"{name}.k", inputs, positions)
        values = self.linear(f"{name}.v", inputs).reshape(len(inputs), shape.n_kv_heads, shape.head_dim)
        out = []
        for row, residue in enumerate(residual):
            heads = []
            for head in range(shape.n_heads):
                shared = head * shape.n_kv_heads // shape.n_heads
                scores = keys[sees[row], shared] @ queries[row, head] / shape.head_dim**0.5
                chances = np.exp(scores - scores.max())
                heads.append(chances @ values[sees[row], shared] / chances.sum())
            hidden = residue + self.linear(f"{name}.o", np.concatenate(heads))
            normed = self.norm(f"{name}.ffn_norm", hidden)
            gated = silu(self.linear(f"{name}.gate", normed)) * self.linear(f"{name}.up", normed)
            out.append(hidden + self.linear(f"{name}.down", gated))
        return np.stack(out)

    def heads(self, name: str, inputs: np.ndarray, positions: list[int]) -> np.ndarray:
        """Queries or keys, rotated: coordinates c and c + head_dim / 2 are one complex number."""
        half = self.shape.head_dim // 2
        heads = self.linear(name, inputs).reshape(len(inputs), -1, self.shape.head_dim)
        if self.shape.qk_norm:
            heads = self.norm(f"{name}_norm", heads)
        turned = heads[..., :half] + 1j * heads[..., half:]
        for row, position in enumerate(positions):
            for c in range(half):
                turned[row, :, c] *= cmath.exp(1j * position * self.shape.rope_theta ** (-c / half))
        return np.concatenate((turned.real, turned.imag), axis=-1)

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        y = x @ self.w[f"{name}.weight"].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.shape.rms_norm_eps) * self.w[f"{name}.weight"]


def nodes_of(tree: Tree) -> range:
    """The root, then all nodes."""
    return range(ROOT, len(tree))


def path_to(tree: Tree, node: int) -> list[int]:
    """Drafted tokens from the root's child to a node."""
    return [] if node == ROOT else [*path_to(tree, tree[node][0]), tree[node][1]]


def causal(n: int) -> Sees:
    return np.tril(np.ones((n, n), dtype=bool))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)
