"""Computes the states that a drafter reads from target layers on several stages.

``fc`` over the outputs of several layers is a sum with one term per layer. Each stage adds the terms of its tapped
layers to one partial sum, fp32 ``[rows, hidden]``, however many layers are tapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.drafter.spec import DrafterSpec
from engine.model.ranges import LayerRange

EMBEDDING = -1  # the tap of the first layer's input


class _Term(NamedTuple):
    layer: int  # within the stage, or EMBEDDING
    weight: Tensor  # [hidden, target_hidden], its columns of ``fc`` times the weights of norms


class TapRelay:
    """One stage's terms.

    Args:
        spec: of the drafter.
        tensors: of the drafter, by normalised names.
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
        self._has_norms, self._adds_squares = spec.fc_norm, _adds_squares(spec)
        first = EMBEDDING if layers.is_first else layers.first
        self._terms = [
            _Term(tap - layers.first, _tap_weight(spec, tensors, place).to(device, dtype))
            for place, tap in enumerate(spec.taps)
            if first <= tap < layers.last
        ]

    @property
    def taps(self) -> list[int]:
        """Layers of the stage whose outputs ``add`` needs."""
        return [term.layer for term in self._terms if term.layer != EMBEDDING]

    @property
    def reads_embedding(self) -> bool:
        """Whether ``add`` needs the embedding."""
        return any(term.layer == EMBEDDING for term in self._terms)

    def add(self, embedded: Tensor | None, outputs: Mapping[int, Tensor], before: Tensor | None) -> Tensor | None:
        """Return the partial sum after this stage.

        Args:
            embedded: ``[1, n, target_hidden]``, input of the stage's first layer; None if ``reads_embedding`` is False.
            outputs: of the tapped layers, of the same shape.
            before: fp32 ``[1, n, hidden]``, the sum of earlier stages; a norm over all taps adds a column with the sum
                of squares. None: earlier stages tap no layer.
        """
        for term in self._terms:
            state = embedded if term.layer == EMBEDDING else outputs[term.layer]
            assert state is not None, "the embedding is tapped"
            if self._has_norms:
                state = normalize_rms(state, self._epsilon)
            added = (state @ term.weight.T).float()
            if self._adds_squares:
                added = torch.cat((added, state.float().square().sum(-1, keepdim=True)), dim=-1)
            before = added if before is None else before + added
        return before


def make_relay(
    checkpoint: DrafterCheckpoint, layers: LayerRange, dtype: torch.dtype, device: torch.device
) -> TapRelay | None:
    """Return a stage's relay; None for a drafter without taps."""
    spec = checkpoint.spec
    return TapRelay(spec, checkpoint.tensors, layers, dtype, device) if spec.taps else None


def finish_taps(spec: DrafterSpec, total: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the states ``[n, hidden]`` of sums over all stages, fp32 ``[n, hidden]``, or a column more for squares."""
    assert spec.layers is not None, "a drafter with taps has layers"
    if _adds_squares(spec):
        mean = total[:, -1:] / (len(spec.taps) * spec.target_hidden_size)
        total = total[:, :-1] * torch.rsqrt(mean + spec.layers.rms_norm_eps)
    return (total if bias is None else total + bias).to(dtype)


def normalize_rms(state: Tensor, epsilon: float) -> Tensor:
    """Return ``[.., n]`` divided by the root of its mean square."""
    exact = state.float()
    return (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + epsilon)).to(state.dtype)


def _adds_squares(spec: DrafterSpec) -> bool:
    """Return whether the sum needs the squares of all taps; a norm per tap makes the norm over all of them redundant,
    except for its epsilon."""
    return spec.norm_before_fc and not spec.fc_norm


def _tap_weight(spec: DrafterSpec, tensors: Mapping[str, Tensor], place: int) -> Tensor:
    """Return the fp32 columns of ``fc`` for the tap at this place, times the weights of the norms."""
    width = spec.target_hidden_size
    columns = slice(place * width, (place + 1) * width)
    weight = tensors["fc.weight"][:, columns].float()
    if spec.fc_norm:
        return weight * tensors[f"fc_norms.{place}.weight"].float()
    return weight * tensors["fc_norm.weight"].float()[columns] if spec.norm_before_fc else weight
