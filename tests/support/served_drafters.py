"""Tiny drafters of every method on tiny targets, as an engine runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.drafter.networks.base import LayeredNetwork, TargetParts
from engine.drafter.networks.build import load_network, new_network
from engine.drafter.serving.rows import CommittedTokens
from engine.drafter.serving.runtime import DrafterPlacement, DraftRuntime
from engine.drafter.settings import DrafterSettings
from engine.drafter.spec import DrafterSpec, LayerShape
from engine.drafter.trees.draft_tree import DraftRequest
from engine.kv.arena import BlockTable
from engine.model.shard import ModelShard
from engine.model.spec import ModelSpec
from engine.protocol import Branch, Draft, RequestView
from engine.target_model.drafter import describe_drafter, drafter_part, embeds_with_target
from engine.target_model.info import TargetInfo
from engine.target_model.local import LocalTarget
from speculators.trained import TrainedDrafts
from tests.support.oracle_attention import attention_by_oracle
from tests.support.tiny_models import tiny_model, tiny_shards

KINDS = ("medusa", "eagle", "eagle 3", "parallelspec-medusa", "parallelspec-medusa on tokens", "parallelspec-eagle",
         "p-eagle", "dflash", "jetspec", "dspark")  # fmt: skip
CUT = ("medusa, cut", "eagle, cut", "eagle 3, cut", "parallelspec-eagle, cut")  # score with rows of the target's head
SETTINGS = DrafterSettings("", depth=4, beam=3)


def drafter_spec(kind: str, target: ModelSpec) -> DrafterSpec:
    kind, is_cut, _ = kind.partition(", cut")
    layers = LayerShape(1, target.hidden_size, 40, 4, 2, 8, 1e4, 1e-6)
    plain = DrafterSpec("eagle", 1, target.hidden_size, target.vocab_size, target.vocab_size, (), layers)
    taps = (0, target.n_layers // 2, target.n_layers - 1)
    own: dict[str, Any] = {"own_head": True, "draft_vocab_size": target.vocab_size // 2}
    masked: dict[str, Any] = {"n_drafts": 4, "has_mask_state": True}
    eagle3 = replace(plain, generation=3, taps=taps, **own)
    block = replace(plain, method="dflash", taps=(-1, *taps[1:]), mask_token_id=1, n_drafts=4)
    block = replace(block, layers=replace(layers, n_layers=2, qk_norm=True))
    markov: dict[str, Any] = {"markov_rank": 5, "has_confidence": True, "confidence_with_markov": True}
    specs = {
        "medusa": replace(plain, method="medusa", layers=None, n_drafts=3, n_heads=3, n_head_layers=1, own_head=True),
        "eagle": replace(plain, fc_bias=True),
        "eagle 3": replace(eagle3, norm_before_fc=True),
        "parallelspec-medusa": replace(plain, method="parallelspec-medusa", **masked),
        "parallelspec-medusa on tokens": replace(plain, method="parallelspec-medusa", n_drafts=3, reads_states=False),
        "parallelspec-eagle": replace(plain, method="parallelspec-eagle", **masked),
        "p-eagle": replace(
            eagle3, method="p-eagle", generation=1, fc_norm=True, mask_token_id=1, own_embedding=True, **masked
        ),
        "dflash": block,
        "jetspec": replace(block, causal_block=True, layers=replace(layers, n_layers=2, window=7)),
        "dspark": replace(block, sample_from_anchor=True, **markov, **own),
    }
    return replace(specs[kind], own_head=False, draft_vocab_size=target.vocab_size // 2) if is_cut else specs[kind]


def random_checkpoint(spec: DrafterSpec, seed: int = 0) -> DrafterCheckpoint:
    torch.manual_seed(seed)
    network = new_network(spec, TargetParts(torch.nn.Identity(), torch.nn.Identity()))
    tensors = {name: weight.detach() for name, weight in network.named_parameters()}
    ids = None
    if spec.draft_vocab_size < spec.vocab_size:
        ids = torch.arange(spec.draft_vocab_size) * (spec.vocab_size // spec.draft_vocab_size)
    return DrafterCheckpoint(spec, tensors, ids, "random")


def with_own_head(checkpoint: DrafterCheckpoint, head: Tensor) -> DrafterCheckpoint:
    """The same drafter with its rows of the target's ``head`` as a head of its own."""
    spec = replace(checkpoint.spec, own_head=True)
    names = [f"heads.{i}.out.weight" for i in range(spec.n_heads)] or ["head.weight"]
    tensors = checkpoint.tensors | {name: head.detach()[checkpoint.draft_ids] for name in names}
    return replace(checkpoint, spec=spec, tensors=tensors)


def drafted_target(
    family: str,
    checkpoint: DrafterCheckpoint,
    *,
    stages: int = 1,
    n_blocks: int = 200,
    block_size: int = 16,
) -> LocalTarget:
    """A tiny target with a drafter on its last stage."""
    shards = tiny_shards(family, stages, embeds=embeds_with_target(checkpoint.spec))
    return with_drafter(shards, checkpoint, n_blocks, block_size)


def with_drafter(
    shards: Sequence[ModelShard],
    checkpoint: DrafterCheckpoint,
    n_blocks: int = 200,
    block_size: int = 16,
) -> LocalTarget:
    """A target of these shards with a drafter on the last; that one embeds tokens if the drafter needs it to."""
    drafter = describe_drafter(checkpoint, SETTINGS, torch.float32)
    info = TargetInfo(shards[0].spec, n_blocks, block_size, 500, drafter=drafter)
    parts = [drafter_part(checkpoint, SETTINGS, shard, info) for shard in shards]
    return LocalTarget.of_shards(info, shards, parts)


class Recording(TrainedDrafts):
    """Records every draft with the text before it; asks for a draft after every ``every`` tokens of a text."""

    def __init__(self, method: str, every: int = 1) -> None:
        super().__init__(method)
        self._every = every
        self.drafts: list[tuple[list[int], Branch]] = []  # text, draft

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        drafts: list[list[Branch]] = []
        for view, budget in zip(views, budgets, strict=True):
            branches = self.propose(view, budget)
            self.drafts += [(view.context.view.tolist(), branch) for branch in branches]
            drafts.append(Draft(branches, drafts_next=len(view.context) % self._every == 0))
        return drafts


class DraftsAnew:
    """Drafts by a drafter that reads a whole text at once, by the oracle's attention and Hugging Face's states."""

    def __init__(self, family: str, checkpoint: DrafterCheckpoint) -> None:
        self._model, self._spec = tiny_model(family), checkpoint.spec
        parts = TargetParts(self._model.model.embed_tokens, self._model.lm_head)
        place = DrafterPlacement(40, 16, torch.float32, torch.device("cpu"))
        self._runtime = DraftRuntime(checkpoint, parts, place, SETTINGS)
        self._network = load_network(self._spec, checkpoint.tensors, parts)
        self._n = 0

    def draft(self, text: list[int], request: DraftRequest) -> Branch | None:
        with torch.inference_mode(), attention_by_oracle():
            hidden, states = outputs_of(self._model, text[:-1])
            if self._spec.taps:
                assert isinstance(self._network, LayeredNetwork)
                states = self._network.fuse(torch.cat([hidden[tap + 1] for tap in self._spec.taps], dim=-1))
            table = BlockTable(16)
            table.extend(range(40))
            self._runtime.start(self._n, table, 0)
            sequence = self._runtime.of(self._n)
            assert sequence is not None
            [branch] = self._runtime.draft([CommittedTokens(sequence, 0, states, text[:-1], text[-1], request)])
            self._runtime.end(self._n)
        self._n += 1
        return branch


def outputs_of(model: Any, text: list[int]) -> tuple[list[Tensor], Tensor]:
    """The embedding and every layer's output before the final norm, and the final norm's output, ``[n, hidden]``."""
    outputs: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _module, _inputs, output: outputs.append(output[0]))
        for layer in model.model.layers
    ]
    found = model(torch.tensor([text]), output_hidden_states=True).hidden_states
    for hook in hooks:
        hook.remove()
    return [found[0][0], *outputs], found[-1][0]
