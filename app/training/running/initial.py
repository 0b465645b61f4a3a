"""A drafter before its training: what is known of its target from the start it does not have to learn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from app.training.data.capture import target_parts
from engine.drafter.networks.build import AnyNetwork, new_network
from engine.drafter.networks.medusa import Medusa
from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.spec import DrafterSpec
from engine.target_model.whole_texts import WholeTexts


def new_drafter(spec: DrafterSpec, model: WholeTexts, draft_ids: Tensor | None, seed: int) -> AnyNetwork:
    """A float32 network on the target's last device.

    A head of its own begins as the target's rows; Medusa's heads begin as the target's head, their blocks as identity,
    as their authors' do (arXiv 2401.10774). Masks are as large as embeddings. Where a matrix reads an embedding beside
    a state and no norm is before it, it begins so that both count alike: final states are tens of times larger.

    Args:
        draft_ids: int64 ``[draft_vocab_size]``, the target's id of every token of the drafter; None: they are the same.
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
        if isinstance(network, PairNetwork) and not spec.taps:
            embedded = _size(model.embed(every))
            if spec.reads_states:
                state = _size(last.norm(torch.randn(64, spec.target_hidden_size).to(last.device, last.dtype)))
                network.fc.weight[:, : network.shape.hidden_size].mul_(state / embedded)
            if spec.method != "eagle":
                network.mask_embeddings.mul_(embedded)
        return network.to(last.device)


def _size(values: Tensor) -> float:
    """The root of the mean square."""
    return float(values.float().square().mean().sqrt())
