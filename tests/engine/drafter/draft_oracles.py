"""Slow oracles of drafted trees: every path with its probability, the best of them, and the target's text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from engine.drafter.trees.choice import DraftVocabulary, choose_tokens, draft_randomness
from engine.drafter.trees.draft_tree import DraftTree
from engine.protocol import Branch
from engine.sampling.history import History
from engine.sampling.keys import NoiseKey
from engine.sampling.noise import Randomness, gumbel_row
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process
from engine.tree import ROOT

Path = tuple[int, ...]
Model = Callable[[Path], torch.Tensor]  # drafted so far -> logits of the next token


def grown(
    tree: DraftTree,
    model: Model,
    randomness: Callable[[NoiseKey], Randomness] = draft_randomness,
    vocabulary: DraftVocabulary | None = None,
) -> Branch | None:
    """The draft when ``model`` scores its rows."""
    while tree.expanded:
        rows = torch.stack([model(path_to(tree, node)) for node in tree.expanded])
        tree.grow(choose_tokens(rows, tree.choice_requests(), randomness, vocabulary))
    return tree.branch("drafter")


def path_to(tree: DraftTree, node: int) -> Path:
    tokens: list[int] = []
    while node != ROOT:
        tokens.insert(0, tree.tokens[node])
        node = tree.parents[node]
    return tuple(tokens)


def chances(logits: torch.Tensor, params: SamplingParams, position: int, history: History | None = None) -> Any:
    """``softmax(logits + T g)`` of one row, fp64 ``[vocab]``."""
    scores = process(logits[None].clone(), [params], [history])[0].double().numpy()
    if not params.is_greedy:
        scores = (scores + gumbel_row((params.seed, params.choice, position), len(scores))) * params.temperature
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def every_path(model: Model, params: SamplingParams, position: int, depth: int) -> dict[Path, float]:
    """All paths of up to ``depth`` tokens that end no later than at a stop id, with the product of their chances."""
    found: dict[Path, float] = {}
    level: dict[Path, float] = {(): 1.0}
    for d in range(depth):
        level = {
            (*path, token): above * float(chance)
            for path, above in level.items()
            for token, chance in enumerate(chances(model(path), params, position + d))
            if chance > 0
        }
        found.update(level)
        level = {path: chance for path, chance in level.items() if path[-1] not in params.stop_ids}
    return found


def best(found: dict[Path, float], n: int) -> dict[Path, float]:
    """The ``n`` most probable paths, one by one, each only once its own beginning is there."""
    kept: dict[Path, float] = {}
    while len(kept) < min(n, len(found)):
        open_paths = [path for path in found if path not in kept and (len(path) == 1 or path[:-1] in kept)]
        path = max(open_paths, key=lambda path: found[path])
        kept[path] = found[path]
    return kept


def paths(branch: Branch) -> list[Path]:
    """The path of every node, in order."""
    known: list[Path] = []
    parents: Iterable[int] = range(ROOT, len(branch.tokens) - 1) if branch.parents is None else branch.parents
    for token, parent in zip(branch.tokens, parents, strict=True):
        known.append((*(known[parent] if parent != ROOT else ()), token))
    return known


def products(branch: Branch) -> list[float]:
    """Of every node, the product of the scores on its path."""
    assert branch.scores is not None
    score_of = dict(zip(paths(branch), branch.scores, strict=True))
    return [float(np.prod([score_of[path[: i + 1]] for i in range(len(path))])) for path in score_of]


def written(model: Model, params: SamplingParams, position: int, depth: int) -> Path:
    """The text of a target with the same logits."""
    path: Path = ()
    for d in range(depth):
        path = (*path, int(chances(model(path), params, position + d).argmax()))
    return path
