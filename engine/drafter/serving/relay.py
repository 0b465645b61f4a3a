"""What each stage adds to the states that a drafter reads: its part of ``fc`` over the layers that are tapped on it.

``fc`` over several layers' outputs side by side is a sum with one term per layer, so that stages pass on one partial
sum, fp32 ``[rows, hidden]``, however many layers are tapped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.drafter.spec import DrafterSpec
from engine.model.ranges import LayerRange

EMBEDDING = -1  # the tap that is the first layer's input


@dataclass(frozen=True, slots=True)
class _Term:
    """A tapped layer and its columns of ``fc``."""

    layer: int  # local; EMBEDDING: the embedding
    weight: Tensor  # [hidden, target_hidden], what norms multiply by included


class TapRelay:
    """One stage's terms.

    Args:
        spec: of the drafter.
        tensors: the drafter's, normalised.
        layers: of the stage.
        dtype: of the stage's activations.
        device: of the stage.
    """

    def __init__(
        self,
        spec: DrafterSpec,
        tensors: Mapping[str, Tensor],
        layers: LayerRange,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        assert spec.layers is not None, "a drafter with taps has layers"
        self._epsilon = spec.layers.rms_norm_eps
        self._normed, self._squares = spec.fc_norm, spec.norm_before_fc and not spec.fc_norm
        first = EMBEDDING if layers.is_first else layers.first
        self._terms = [
            _Term(_local(tap, layers), _columns(spec, tensors, place).to(device, dtype))
            for place, tap in enumerate(spec.taps)
            if first <= tap < layers.last
        ]

    @property
    def taps(self) -> list[int]:
        """Local layers whose outputs ``add`` wants."""
        return [term.layer for term in self._terms if term.layer != EMBEDDING]

    @property
    def reads_embedding(self) -> bool:
        """Whether ``add`` wants the embedding."""
        return any(term.layer == EMBEDDING for term in self._terms)

    def add(self, embedded: Tensor | None, outputs: Mapping[int, Tensor], before: Tensor | None) -> Tensor | None:
        """The partial sum behind this stage.

        Args:
            embedded: ``[1, n, target_hidden]``, what the stage's first layer reads; None: unknown, and not wanted.
            outputs: of its tapped layers, alike.
            before: fp32 ``[1, n, hidden]``, the sum of earlier stages; with a norm over all taps one column more, the
                sum of squares. None: no layer was tapped yet.
        """
        for term in self._terms:
            state = embedded if term.layer == EMBEDDING else outputs[term.layer]
            assert state is not None, "the embedding is tapped"
            if self._normed:
                state = rms_normed(state, self._epsilon)
            added = (state @ term.weight.T).float()
            if self._squares:
                added = torch.cat((added, state.float().square().sum(-1, keepdim=True)), dim=-1)
            before = added if before is None else before + added
        return before


class Fused:
    """The last stage's end of the relay: from the sum to the states that the drafter reads.

    Args:
        spec: of the drafter.
        tensors: the drafter's, normalised.
        dtype: of the drafter.
        device: of the drafter.
    """

    def __init__(
        self, spec: DrafterSpec, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device
    ) -> None:
        assert spec.layers is not None, "a drafter with taps has layers"
        self._dtype, self._epsilon = dtype, spec.layers.rms_norm_eps
        self._width = len(spec.taps) * spec.target_hidden_size
        self._squares = spec.norm_before_fc and not spec.fc_norm
        self._bias = tensors["fc.bias"].to(device, torch.float32) if spec.fc_bias else None

    def finish(self, total: Tensor) -> Tensor:
        """States ``[n, hidden]`` of sums, fp32 ``[n, hidden]`` or one column more."""
        if self._squares:
            total = total[:, :-1] * torch.rsqrt(total[:, -1:] / self._width + self._epsilon)
        if self._bias is not None:
            total = total + self._bias
        return total.to(self._dtype)


def relay_of(
    checkpoint: DrafterCheckpoint, layers: LayerRange, dtype: torch.dtype, device: torch.device
) -> TapRelay | None:
    """A stage's relay; None for a drafter that taps no layer."""
    spec = checkpoint.spec
    return TapRelay(spec, checkpoint.tensors, layers, dtype, device) if spec.taps else None


def rms_normed(state: Tensor, epsilon: float) -> Tensor:
    """``[.., n]`` divided by the root of its mean square."""
    exact = state.float()
    return (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + epsilon)).to(state.dtype)


def _local(tap: int, layers: LayerRange) -> int:
    return EMBEDDING if tap == EMBEDDING else tap - layers.first


def _columns(spec: DrafterSpec, tensors: Mapping[str, Tensor], place: int) -> Tensor:
    """Of ``fc`` over the tap at this place, in float32; the norms' weights are columns' factors.

    With both norms the one over all taps only scales what the other one normalises anyway, but for its epsilon.
    """
    width = spec.target_hidden_size
    own = slice(place * width, (place + 1) * width)
    columns = tensors["fc.weight"][:, own].float()
    for name, factors in _norms(spec, place, own):
        columns = columns * tensors[name].float()[factors]
    return columns


def _norms(spec: DrafterSpec, place: int, own: slice) -> Sequence[tuple[str, slice]]:
    if spec.fc_norm:
        return [(f"fc_norms.{place}.weight", slice(None))]
    return [("fc_norm.weight", own)] if spec.norm_before_fc else []
