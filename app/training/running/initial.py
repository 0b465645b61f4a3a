"""A drafter before its training: what is known of its target from the start it does not have to learn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from app.training.data.capture import target_parts
from engine.drafter.networks.build import AnyNetwork, new_network
from engine.drafter.networks.medusa import Medusa
from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.spec import DrafterSpec
from engine.target.whole_texts import WholeTexts


def new_drafter(spec: DrafterSpec, model: WholeTexts, draft_ids: Tensor | None, seed: int) -> AnyNetwork:
    """A float32 network on the target's last device.

    A head of its own begins as the target's rows; Medusa's heads begin as the target's head, their blocks as identity,
    as their authors' do (arXiv 2401.10774); masks are as large as embeddings.

    Args:
        spec: of the drafter.
        model: its target.
        draft_ids: int64 ``[draft_vocab_size]``, the target's id of every token of the drafter; None: they are the same.
        seed: of the other weights.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network = new_network(spec, target_parts(model))
        every = torch.arange(spec.vocab_size)
        ids = every if draft_ids is None else draft_ids
        last = model.shards[-1]
        if isinstance(network, Medusa):
            for head in network.heads:
                head.out.weight.copy_(last.head_rows(every))  # type: ignore[union-attr, operator]
                for weight in head.blocks.parameters():  # type: ignore[union-attr]
                    nn.init.zeros_(weight)
        elif spec.own_head:
            network.head.weight.copy_(last.head_rows(ids))
        if isinstance(network, PairNetwork) and spec.method != "eagle":
            network.mask_embeddings.mul_(model.embed(every).float().square().mean().sqrt().cpu())
        return network.to(last.device)
