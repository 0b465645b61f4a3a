"""Builds a drafter's network from its spec, with new weights or those of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.drafter.networks.base import TargetParts
from engine.drafter.networks.dflash import DFlash
from engine.drafter.networks.medusa import Medusa
from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError

AnyNetwork = Medusa | PairNetwork | DFlash


def new_network(spec: DrafterSpec, target: TargetParts) -> AnyNetwork:
    """A network with random float32 weights, under torch's seed.

    Raises:
        ConfigError: the spec lacks a field that its method needs, or contradicts itself.
    """
    if spec.method == "medusa":
        return Medusa(spec, target)
    return DFlash(spec, target) if spec.method == "dflash" else PairNetwork(spec, target)


def load_network(spec: DrafterSpec, tensors: Mapping[str, Tensor], target: TargetParts) -> AnyNetwork:
    """A frozen network that uses ``tensors`` without copying them, on their device.

    Args:
        spec: describes the drafter.
        tensors: by normalised name; all of one dtype, which embeddings and states must have, too.
        target: the parts of the target that the drafter uses.

    Raises:
        ConfigError: a tensor is missing, unknown, or has another shape than the spec says.
    """
    with torch.device("meta"):
        network = new_network(spec, target)
    try:
        network.load_state_dict(dict(tensors), assign=True)
    except RuntimeError as error:
        raise ConfigError(f"the drafter's tensors do not match its spec ({spec.method}): {error}") from error
    return network.requires_grad_(False).eval()
