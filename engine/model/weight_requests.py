"""Requests the weights of a model from a checkpoint and puts them into its modules, some GiB at a time."""

from __future__ import annotations

from typing import Any

import torch

from engine.errors import UnsupportedModelError
from engine.model.build import put_weight
from engine.model.matrices.linears import is_layer_matrix, put_matrix
from engine.model.matrices.part import OUTER, WeightPart
from engine.model.matrices.quantization import SCALES, Quantization
from engine.model.matrices.stored import Tensors, input_order, to_memory, to_weights
from engine.model.weights.meter import Meter
from engine.model.weights.tensors import CheckpointTensors

MOST_BYTES = 4 << 30  # of stored matrices that are read before they are converted


class WeightRequests:
    """Weights that are requested, and then read.

    Args:
        model: gets them; it has no memory yet.
        tensors: of the checkpoint.
        meter: counts the bytes.
        dtype: of all weights that are not quantized.
        device: of the weights.
        quantization: of the layers' matrices.
        is_made: whether the checkpoint has full precision, and matrices are quantized while they are read.
    """

    def __init__(
        self,
        model: Any,
        tensors: CheckpointTensors,
        meter: Meter,
        dtype: torch.dtype,
        device: torch.device,
        quantization: Quantization | None,
        is_made: bool,
    ) -> None:
        self._model, self._tensors, self._meter = model, tensors, meter
        self._dtype, self._device = dtype, device
        self._quantization, self._is_made = quantization, is_made
        self._stored: dict[str, tuple[WeightPart | None, Tensors]] = {}

    def request(self, name: str, source: str, part: WeightPart | None) -> None:
        """Request a parameter, or a part of it, from the checkpoint's tensor ``source``.

        Raises:
            UnsupportedModelError: a tensor is missing, has another shape or dtype than the config says, or is damaged.
        """
        model, tensors, quantization = self._model, self._tensors, self._quantization
        shape, owner = model.get_parameter(name).shape, source.removesuffix(".weight")
        layout = None if quantization is None else quantization.layout
        to_quantize = quantization if is_layer_matrix(model, name) else None
        # A quantised checkpoint may have matrices in full precision, which keep their dtype, and a quantised router.
        if layout is not None and layout.has_matrix(owner, tensors):
            self._stored[name] = part, tensors.request_matrix(owner, layout, shape, part)
            if tensors.requested_bytes > MOST_BYTES:
                self.read()
        elif to_quantize is not None and self._is_made:
            put_matrix(model, name, *tensors.quantize(source, shape, to_quantize, part), to_quantize)
        elif to_quantize is not None and f"{owner}.{SCALES}" in tensors:  # bitsandbytes' kernels take both unchanged
            rows = part if part is not None and part.dim == OUTER else None
            scales = tensors.request(f"{owner}.{SCALES}", torch.float32, shape[:1], rows)
            put_matrix(model, name, tensors.request(source, torch.int8, shape, part), scales, to_quantize)
        else:
            put_weight(model, name, tensors.request(source, self._dtype, shape, part))

    def read(self) -> None:
        """Read all that is requested.

        Raises:
            UnsupportedModelError: a file cannot be read, or a matrix has numbers that cannot be used.
        """
        self._tensors.read(self._meter)
        while self._stored:  # one after the other, each of which frees its tensors
            name, (part, stored) = self._stored.popitem()
            try:
                self._put_stored(name, part, stored)
            except UnsupportedModelError as error:
                raise UnsupportedModelError(f"{name} cannot be read: {error}") from error

    def _put_stored(self, name: str, part: WeightPart | None, stored: Tensors) -> None:
        """Put a stored matrix into the model, as numbers or as weights."""
        assert self._quantization is not None
        assert self._quantization.layout is not None
        layout, (n_out, n_in) = self._quantization.layout, self._model.get_parameter(name).shape
        tensors = {suffix: tensor.to(self._device) for suffix, tensor in stored.items()}
        if self._quantization.widens or not is_layer_matrix(self._model, name):
            put_weight(self._model, name, to_weights(tensors, layout, n_out, n_in, self._dtype, part))
            return
        if input_order(stored, layout) is not None:
            raise UnsupportedModelError(
                f"it has act-order ({layout.order} is not ascending), which is read on a CPU alone; a checkpoint "
                f"without it would do"
            )
        owner = name.removesuffix(".weight")
        bias = self._model.get_submodule(owner).bias
        self._model.set_submodule(owner, to_memory(tensors, layout, n_out, n_in, part).linear(bias))
