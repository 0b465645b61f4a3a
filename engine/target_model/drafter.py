"""Loads a trained drafter and builds the parts that a target's stages run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from engine.drafter.checkpoint.read import read_drafter
from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.drafter.networks.base import TargetParts
from engine.drafter.part import NO_DRAFTER, DrafterPart
from engine.drafter.serving.forwards import MakeForwards, ModuleForwards
from engine.drafter.serving.relay import make_relay
from engine.drafter.serving.runtime import DrafterPlacement, DraftRuntime
from engine.drafter.settings import DrafterInfo, DrafterSettings, scratch_slots
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError
from engine.kv.blocks import block_bytes
from engine.model.resolve import resolve
from engine.model.shard import ModelShard
from engine.model.spec import ModelSpec
from engine.target_model.info import TargetInfo

SAMPLE = 4096  # bytes hashed of every tensor


def read_checkpoint(settings: DrafterSettings, target: ModelSpec) -> DrafterCheckpoint:
    """Return the drafter, on the CPU.

    Raises:
        ConfigError, UnsupportedModelError: as ``read_drafter``.
    """
    return read_drafter(Path(resolve(settings.path)), target, settings.taps)


def describe_drafter(checkpoint: DrafterCheckpoint, settings: DrafterSettings, dtype: torch.dtype) -> DrafterInfo:
    """Return the drafter's description for schedulers and speculators."""
    spec, layers = checkpoint.spec, checkpoint.spec.layers
    per_token = 0
    if layers is not None:
        per_token = block_bytes(layers.n_layers, 1, layers.n_kv_heads, layers.head_dim, dtype.itemsize)
    n_weights = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    embedding, head = (size * spec.target_hidden_size for size in (spec.vocab_size, spec.draft_vocab_size))
    n_kept = n_weights + (embedding if embeds_with_target(spec) else 0) + (head if spec.uses_part_of_target_head else 0)
    once = n_weights + (0 if spec.own_head else head * max(1, spec.n_heads))
    return DrafterInfo(
        method=spec.method,
        layout=checkpoint.layout,
        taps=spec.taps,
        n_scratch=scratch_slots(spec, settings),
        cache_bytes=per_token,
        weight_bytes=n_kept * dtype.itemsize,
        work=once * (settings.depth if spec.method == "eagle" else 1),
        identity=_hash(checkpoint),
    )


def embeds_with_target(spec: DrafterSpec) -> bool:
    """Return whether the drafter embeds tokens with the target's embedding."""
    return spec.method != "medusa" and not spec.own_embedding


def drafter_part(
    checkpoint: DrafterCheckpoint | None,
    settings: DrafterSettings | None,
    shard: ModelShard,
    info: TargetInfo,
    forwards: MakeForwards = ModuleForwards,
) -> DrafterPart:
    """Return the part of the drafter on the stage of ``shard``; ``forwards`` runs the drafter's layers.

    Raises:
        ConfigError: the checkpoint lacks something, contradicts itself, or differs from that of ``info``.
    """
    if checkpoint is None or settings is None:
        return NO_DRAFTER
    if info.drafter is not None and _hash(checkpoint) != info.drafter.identity:
        raise ConfigError(
            f"the drafter {settings.path} is not the one with which the pipeline began: it has changed, or differs "
            "between nodes; start the pipeline anew"
        )
    relay = make_relay(checkpoint, shard.range, shard.dtype, shard.device)
    if not shard.range.is_last:
        return DrafterPart(relay)

    def embed(tokens: Tensor) -> Tensor:
        return shard.embed(tokens.flatten())[0].view(*tokens.shape, -1)

    ids = checkpoint.draft_ids if checkpoint.spec.uses_part_of_target_head else None
    head = shard.head if ids is None else shard.head_over(ids)
    place = DrafterPlacement(info.n_blocks, info.block_size, shard.dtype, shard.device, forwards)
    return DrafterPart(relay, DraftRuntime(checkpoint, TargetParts(embed, head), place, settings))


def _hash(checkpoint: DrafterCheckpoint) -> str:
    """Return a hash of the spec and of a sample of every tensor."""
    ids = None if checkpoint.draft_ids is None else checkpoint.draft_ids.tolist()
    digest = hashlib.sha256(repr((checkpoint.spec, ids)).encode())
    for name, tensor in sorted(checkpoint.tensors.items()):
        flat = tensor.reshape(-1).view(torch.uint8)
        first = max(0, len(flat) - SAMPLE) // 2
        digest.update(name.encode() + flat[first : first + SAMPLE].numpy().tobytes())
    return digest.hexdigest()[:32]
