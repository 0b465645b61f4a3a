"""What all networks of drafters share: the target's parts, and how tapped states are fused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.drafter.networks.layer import rms_norm
from engine.drafter.networks.rotary import Rotary
from engine.drafter.spec import DrafterSpec, LayerShape
from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TargetParts:
    """The target's frozen ends, used where a drafter has none of its own; no part of its weights."""

    embed: Callable[[Tensor], Tensor]  # int64 [...] -> [..., hidden]
    head: Callable[[Tensor], Tensor]  # [..., hidden], as the final norm leaves it -> logits [..., vocab_size]


class Network(nn.Module):
    """A drafter's weights under their normalised names, and what is computed with them.

    Every method takes any leading dimensions: ``[n, ...]`` packs rows of many sequences, ``[b, n, ...]`` is a batch.
    """

    def __init__(self, spec: DrafterSpec, target: TargetParts) -> None:
        super().__init__()
        self.spec, self.target = spec, target
        width = spec.target_hidden_size if spec.layers is None else spec.layers.hidden_size
        if width != spec.target_hidden_size and not (spec.own_embedding and spec.own_head):
            raise ConfigError(
                f"hidden_size of the drafter's layers is {width}, the target's {spec.target_hidden_size}: without an "
                "embedding and a head of its own (own_embedding, own_head) they must be equal"
            )
        if spec.own_embedding:
            self.embed = nn.Embedding(spec.vocab_size, width)
        if spec.own_head:
            self.head = nn.Linear(width, spec.draft_vocab_size, bias=False)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Embeddings ``[..., hidden]`` of tokens, int64 ``[...]``."""
        embedded: Tensor = self.embed(tokens) if self.spec.own_embedding else self.target.embed(tokens)
        return embedded

    def score(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., draft_vocab_size]`` of ``[..., hidden]`` by the drafter's head or the target's.

        They are float32 at least: bfloat16 ties what is not equal.
        """
        logits: Tensor = self.head(hidden) if self.spec.own_head else self.target.head(hidden)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


class LayeredNetwork(Network):
    """A network with transformer layers."""

    def __init__(self, spec: DrafterSpec, target: TargetParts) -> None:
        super().__init__(spec, target)
        self.shape = layer_shape(spec)
        self.rotary = Rotary(self.shape)


class TappedNetwork(LayeredNetwork):
    """A network that reads tapped layers, through one matrix."""

    def __init__(self, spec: DrafterSpec, target: TargetParts) -> None:
        super().__init__(spec, target)
        n, width = len(spec.taps), spec.target_hidden_size
        if n == 0:
            raise ConfigError(f"taps is empty: {spec.method} reads the outputs of target layers, at least one")
        if spec.norm_before_fc:
            self.fc_norm = rms_norm(n * width, self.shape)
        if spec.fc_norm:
            self.fc_norms = nn.ModuleList(rms_norm(width, self.shape) for _ in range(n))
        self.fc = nn.Linear(n * width, self.shape.hidden_size, bias=spec.fc_bias)

    def fuse(self, tapped: Tensor) -> Tensor:
        """States ``[..., hidden]`` of tapped outputs side by side, ``[..., n_taps * target_hidden]``, in the spec's
        order."""
        if self.spec.norm_before_fc:
            tapped = self.fc_norm(tapped)
        if self.spec.fc_norm:
            parts = tapped.chunk(len(self.fc_norms), dim=-1)
            tapped = torch.cat([norm(part) for norm, part in zip(self.fc_norms, parts, strict=True)], dim=-1)
        fused: Tensor = self.fc(tapped)
        return fused


def layer_shape(spec: DrafterSpec) -> LayerShape:
    """The spec's layers.

    Raises:
        ConfigError: it has none.
    """
    if spec.layers is None:
        raise ConfigError(f"layers is None: {spec.method} has at least one transformer layer")
    return spec.layers
