"""Base classes of drafter networks: embedding, head, and the fusion of tapped states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.drafter.networks.layer import DecoderLayer, Rotary, rms_norm
from engine.drafter.spec import DrafterSpec, check_spec


@dataclass(frozen=True, slots=True)
class TargetParts:
    """The target's frozen embedding and head, for drafters that have none; they are not part of a drafter's weights."""

    embed: Callable[[Tensor], Tensor]  # int64 [...] -> [..., hidden]
    head: Callable[[Tensor], Tensor]  # outputs of the final norm [..., hidden] -> logits [..., draft_vocab_size]


class Network(nn.Module):
    """A drafter's weights by the names in ``checkpoint.tensors.TABLE``.

    Methods accept any leading dimensions: ``[n, ...]`` packs rows of many sequences, ``[b, n, ...]`` is a batch.

    Raises:
        ConfigError: the spec lacks a field that its method needs, or contradicts itself.
    """

    def __init__(self, spec: DrafterSpec, target: TargetParts) -> None:
        super().__init__()
        check_spec(spec)
        self.spec, self.target = spec, target
        if spec.own_embedding:
            self.embed = nn.Embedding(spec.vocab_size, spec.width)
        if spec.own_head and spec.method != "medusa":
            self.head = nn.Linear(spec.width, spec.draft_vocab_size, bias=False)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Embeddings ``[..., hidden]`` of tokens, int64 ``[...]``."""
        embedded: Tensor = self.embed(tokens) if self.spec.own_embedding else self.target.embed(tokens)
        return embedded

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., draft_vocab_size]`` of ``[..., hidden]``, at least float32: bfloat16 rounds them to ties."""
        logits: Tensor = self.head(hidden) if self.spec.own_head else self.target.head(hidden)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


class LayeredNetwork(Network):
    """A network with transformer layers; a matrix ``fc`` combines what it reads."""

    def __init__(self, spec: DrafterSpec, target: TargetParts) -> None:
        super().__init__(spec, target)
        assert spec.layers is not None, "check_spec requires layers"
        self.shape = shape = spec.layers
        self.rotary = Rotary(shape)
        if spec.norm_before_fc:
            self.fc_norm = rms_norm(spec.state_width, shape)
        if spec.fc_norm:
            self.fc_norms = nn.ModuleList(rms_norm(spec.target_hidden_size, shape) for _ in spec.taps)
        if spec.reads_states:
            width = spec.state_width + (0 if spec.taps else spec.width)  # without taps: [token embedding; final state]
            self.fc = nn.Linear(width, spec.width, bias=spec.fc_bias)
        self.layers = nn.ModuleList(DecoderLayer(spec, shape, i) for i in range(shape.n_layers))
        self.norm = rms_norm(spec.width, shape) if spec.has_final_norm else nn.Identity()

    def fuse(self, states: Tensor) -> Tensor:
        """States ``[..., hidden]`` of tapped outputs side by side, ``[..., n_taps * target_hidden]``, in the spec's
        order. Without taps, the final norm's outputs, unchanged."""
        if not self.spec.taps:
            return states
        if self.spec.norm_before_fc:
            states = self.fc_norm(states)
        if self.spec.fc_norm:
            parts = states.chunk(len(self.fc_norms), dim=-1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norms, parts, strict=True)], dim=-1)
        fused: Tensor = self.fc(states)
        return fused
