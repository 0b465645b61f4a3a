"""Networks from specs: with the weights of a checkpoint, or new ones to be trained."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.drafter.networks.base import Network, TargetParts
from engine.drafter.networks.dflash import DFlash
from engine.drafter.networks.eagle3 import Eagle3
from engine.drafter.networks.medusa import Medusa
from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError

AnyNetwork = Medusa | PairNetwork | Eagle3 | DFlash


def new_network(spec: DrafterSpec, target: TargetParts) -> AnyNetwork:
    """A network with random float32 weights, under torch's seed.

    Raises:
        ConfigError: the spec lacks what its method needs, or contradicts itself.
    """
    if not spec.own_head and spec.method != "medusa" and spec.draft_vocab_size != spec.vocab_size:
        raise ConfigError(
            f"draft_vocab_size is {spec.draft_vocab_size}, but the drafter has no head of its own (own_head): the "
            f"target's scores {spec.vocab_size} tokens"
        )
    if spec.method == "medusa":
        return Medusa(spec, target)
    if spec.method == "dflash":
        return DFlash(spec, target)
    if spec.method == "p-eagle" or (spec.method == "eagle" and spec.generation == 3):
        return Eagle3(spec, target)
    return PairNetwork(spec, target)


def load_network(spec: DrafterSpec, tensors: Mapping[str, Tensor], target: TargetParts) -> AnyNetwork:
    """A network whose weights are ``tensors`` themselves, uncopied, frozen, and on their device.

    Args:
        spec: what the drafter is.
        tensors: by normalised name; all of one dtype, that of embeddings and states.
        target: what it uses of the target.

    Raises:
        ConfigError: a tensor is missing, superfluous or of another shape than the spec says.
    """
    with torch.device("meta"):
        network = new_network(spec, target)
    _check(spec, network, tensors)
    network.load_state_dict(dict(tensors), assign=True)
    return network.requires_grad_(False).eval()


def _check(spec: DrafterSpec, network: Network, tensors: Mapping[str, Tensor]) -> None:
    wanted = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    absent, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if absent or unknown:
        parts = [f"lacks {', '.join(absent)}"] if absent else []
        parts += [f"has {', '.join(unknown)}, which it does not know"] if unknown else []
        raise ConfigError(f"the checkpoint of a drafter of method {spec.method} {' and '.join(parts)}")
    for name, shape in wanted.items():
        if tuple(tensors[name].shape) != shape:
            raise ConfigError(
                f"tensor {name} of the drafter has shape {tuple(tensors[name].shape)}; its spec ({spec.method}) says "
                f"{shape}"
            )
