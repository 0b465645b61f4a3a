"""Reads a trained drafter of any public layout, and says clearly if it is none for this target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from engine.drafter.checkpoint.checkpoint import DrafterCheckpoint
from engine.drafter.checkpoint.files import read_config, read_tensors
from engine.drafter.checkpoint.layouts import recognise, refuse
from engine.drafter.checkpoint.public_names import normalised, vocabulary_table
from engine.drafter.checkpoint.shapes import check_tensors
from engine.drafter.checkpoint.vocabulary import draft_ids
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError
from engine.model.spec import ModelSpec


def read_drafter(folder: Path, target: ModelSpec, tap_override: tuple[int, ...] | None = None) -> DrafterCheckpoint:
    """A drafter's checkpoint, unchanged as its authors published it, in normalised form.

    Args:
        folder: with a config.json, and with tensors as safetensors or as a pickle (of which tensors alone are read).
        target: whose drafter it is to be.
        tap_override: the layers whose outputs it reads, instead of those that the checkpoint names or that its layout
            has as a default; from 0, -1 is the embedding.

    Raises:
        ConfigError: there is no checkpoint, or it is none for this target; names what differs.
        UnsupportedModelError: the layout is not known or not run, or tensors are missing, left over, or of another
            shape than the config says.
    """
    config = read_config(folder)
    refuse(folder, config)
    public = read_tensors(folder)
    tensors = normalised(public)
    layout, read = recognise(folder, config, tensors)
    spec = read(folder, config, tensors, target)
    if tap_override is not None:
        spec = _overridden(spec, tap_override)
    _check_pair(folder, spec, target)
    _check_taps(folder, spec, target, tensors)
    check_tensors(folder, spec, tensors)
    ids = draft_ids(folder, spec, vocabulary_table(public, "d2t"), vocabulary_table(public, "t2d"))
    return DrafterCheckpoint(spec, tensors, ids, layout)


def _overridden(spec: DrafterSpec, taps: tuple[int, ...]) -> DrafterSpec:
    if not spec.taps:
        raise ConfigError(f"--drafter-layers is {list(taps)}, but a drafter of method {spec.method} reads no layer")
    return replace(spec, taps=taps)


def _check_pair(folder: Path, spec: DrafterSpec, target: ModelSpec) -> None:
    if spec.vocab_size != target.vocab_size:
        raise ConfigError(
            f"the drafter {folder} was trained for a vocabulary of {spec.vocab_size} token ids, the target has "
            f"{target.vocab_size}"
        )
    if spec.target_hidden_size != target.hidden_size:
        raise ConfigError(
            f"the drafter {folder} reads states of width {spec.target_hidden_size}, the target's are of width "
            f"{target.hidden_size} (hidden_size)"
        )
    if spec.layers is not None and spec.layers.hidden_size != target.hidden_size:
        lacking = [what for what, own in (("embedding", spec.own_embedding), ("head", spec.own_head)) if not own]
        if lacking:
            raise ConfigError(
                f"the drafter {folder} has the width {spec.layers.hidden_size} and no {lacking[0]} of its own; the "
                f"target's is of width {target.hidden_size} (hidden_size)"
            )
    if spec.mask_token_id is not None and not 0 <= spec.mask_token_id < target.vocab_size:
        raise ConfigError(
            f"the drafter {folder} has the mask_token_id {spec.mask_token_id}, which the target's vocabulary of "
            f"{target.vocab_size} token ids lacks"
        )


def _check_taps(folder: Path, spec: DrafterSpec, target: ModelSpec, tensors: Mapping[str, Tensor]) -> None:
    beyond = [tap for tap in spec.taps if not -1 <= tap < target.n_layers]
    if beyond:
        raise ConfigError(
            f"the drafter {folder} reads the outputs of layers {list(spec.taps)}; the target has no layer {beyond[0]}, "
            f"its layers are 0 to {target.n_layers - 1}"
        )
    if not spec.taps or spec.method.startswith("parallelspec") or "fc.weight" not in tensors:
        return
    n_read = tensors["fc.weight"].shape[-1] / target.hidden_size
    if n_read != len(spec.taps):
        raise ConfigError(
            f"the drafter {folder} reads {n_read:g} states of width {target.hidden_size} (fc.weight), but "
            f"{len(spec.taps)} layers are named: {list(spec.taps)}"
        )
