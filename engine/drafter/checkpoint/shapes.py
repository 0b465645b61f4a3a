"""Which tensors a drafter has, and of what shapes: what its description says against what its checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from engine.drafter.networks.base import TargetParts
from engine.drafter.networks.build import new_network
from engine.drafter.spec import DrafterSpec
from engine.errors import UnsupportedModelError

Shapes = dict[str, tuple[int, ...]]
_NAMED = 4  # tensors that a message lists


def check_tensors(folder: Path, spec: DrafterSpec, tensors: Mapping[str, Tensor]) -> None:
    """Whether a checkpoint has every tensor that its drafter needs, none that it has no use for, and each in its shape.

    Raises:
        UnsupportedModelError: names the first that differ, and how.
    """
    known = needed_shapes(spec)
    missing = [name for name in known if name not in tensors]
    if missing:
        raise UnsupportedModelError(f"{folder} lacks {_some(missing)} of a drafter of method {spec.method}")
    left = [name for name in tensors if name not in known]
    if left:
        raise UnsupportedModelError(f"{folder} has {_some(left)}, for which method {spec.method} has no use")
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != known[name]:
            raise UnsupportedModelError(
                f"{name!r} in {folder} has the shape {list(tensor.shape)}, but the drafter that config.json describes "
                f"needs {list(known[name])}"
            )
        if not tensor.is_floating_point():
            raise UnsupportedModelError(f"{name!r} in {folder} has the dtype {tensor.dtype}; read are floating ones")


def needed_shapes(spec: DrafterSpec) -> Shapes:
    """Of every tensor of a drafter, by normalised name: those of its network.

    Raises:
        ConfigError: the spec lacks what its method needs, or contradicts itself.
    """
    with torch.device("meta"):
        network = new_network(spec, TargetParts(embed=torch.nn.Identity(), head=torch.nn.Identity()))
    return {name: tuple(weight.shape) for name, weight in network.state_dict().items()}


def _some(names: list[str]) -> str:
    listed = ", ".join(repr(name) for name in names[:_NAMED])
    return f"tensors {listed}" + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
