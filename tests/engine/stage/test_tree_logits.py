"""Each node's logits in a scored tree are those of its path scored alone by Hugging Face."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.attention import segment
from engine.model.shard import ModelShard
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, Work
from engine.tree import EMPTY_TREE, TokenTree
from tests.support.oracle_attention import attention_by_oracle
from tests.support.tiny_models import tiny_model, tiny_shards

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
BLOCK = 4


class SingleSequencePipeline:
    """Stages driven by hand, one sequence in every step."""

    def __init__(self, shards: tuple[ModelShard, ...], blocks: list[int]) -> None:
        self._shards = shards
        self._stages = [Stage(shard, 64, BLOCK) for shard in shards]
        self._blocks = blocks
        self._n_given = 0

    @torch.inference_mode()
    def score(self, n_cached: int, tokens: list[int], tree: TokenTree | None, keep: list[int], new: bool) -> Tensor:
        """Logits of every row, ``[n_rows, vocab]``."""
        n_blocks = -(-(n_cached + len(tokens) + len(tree or ())) // BLOCK)
        fresh = self._blocks[self._n_given : n_blocks]
        self._n_given = max(self._n_given, n_blocks)
        starts = [SequenceStart(5, SamplingParams(), 1, Needs())] if new else []
        step = Step(0, [Work(5, n_cached, tokens, tree, keep, fresh)], starts)
        activations: Activations | None = None
        for stage in self._stages:
            stage.admit(step)
            stage.prepare(step)
            activations = stage.forward(step, activations)
        assert activations is not None
        return self._shards[-1].logits(activations.hidden[0]).clone()


def random_tree(rng: random.Random, n: int) -> TokenTree:
    parents = [rng.choice([i - 1, rng.randrange(-1, i)]) for i in range(n)]
    return TokenTree([rng.randrange(3, 97) for _ in range(n)], parents)


def alone(model: Any, text: list[int]) -> Tensor:
    """Next-token logits after ``text``, ``[vocab]``."""
    with torch.inference_mode():
        return model(torch.tensor([text])).logits[0, -1]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("family", "split_from", "attention"),
    [
        *((family, 1, nullcontext) for family in FAMILIES),
        ("llama", 1 << 30, nullcontext),
        ("gemma3", 1 << 30, nullcontext),
        ("llama", 1, attention_by_oracle),
        ("gemma3", 1, attention_by_oracle),
    ],
)
def test_each_node_scores_as_its_path_does_alone(
    family: str, split_from: int, attention: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In trees that follow accepted paths, by the engine's attention and by the oracle's."""
    monkeypatch.setattr(segment, "SPLIT_FROM", split_from)
    rng = random.Random(split_from)
    blocks = rng.sample(range(64), 40) if split_from == 1 else list(range(10, 50))
    pipeline = SingleSequencePipeline(tiny_shards(family, 2), blocks)
    text = [rng.randrange(3, 97) for _ in range(33)]
    pipeline.score(0, text[:20], None, [], True)
    pipeline.score(20, text[20:-1], None, [], False)
    keep: list[int] = []
    for n_nodes in (12, 9, 0, 5):
        tree = random_tree(rng, n_nodes) if n_nodes else EMPTY_TREE
        with attention():
            logits = pipeline.score(len(text) - 1, text[-1:], tree, keep, False)
        for node in range(-1, n_nodes):
            path = [tree.tokens[i] for i in tree.path(node)]
            assert torch.allclose(logits[node + 1], alone(tiny_model(family), text + path), atol=1e-4), (n_nodes, node)
        deepest = max(range(n_nodes), key=tree.depths.__getitem__, default=-1)  # any path may have been accepted
        accepted = tree.path(deepest)
        keep = [node + 1 for node in accepted]
        text = [*text, *(tree.tokens[node] for node in accepted), rng.randrange(3, 97)]
