"""Reads a trained drafter of any public layout, and checks that it fits the target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.drafter.checkpoint.files import read_config, read_tensors
from engine.drafter.checkpoint.ids import read_draft_ids
from engine.drafter.checkpoint.layouts import OWN, PublicCheckpoint, find_layout, read_spec, refuse_unsupported
from engine.drafter.checkpoint.tensors import MIDLAYER, DrafterCheckpoint, check_tensors, name_tensors, strip_names
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError
from engine.model.spec import ModelSpec


def read_drafter(folder: Path, target: ModelSpec, tap_override: tuple[int, ...] | None = None) -> DrafterCheckpoint:
    """A drafter from an unchanged public checkpoint.

    Args:
        folder: has a config.json, and tensors as safetensors or as a pickle, from which only tensors are read.
        target: the model that the drafter drafts for.
        tap_override: target layers whose outputs the drafter reads, instead of those of the checkpoint or the defaults
            of its layout; counted from 0, -1 is the embedding.

    Raises:
        ConfigError: there is no checkpoint, or it does not fit the target; names what differs.
        UnsupportedModelError: the layout is unknown or unsupported, or a tensor is missing, unknown, or has another
            shape than the config says.
    """
    config = read_config(folder)
    refuse_unsupported(folder, config)
    stored = read_tensors(folder)
    tensors = strip_names(stored)
    offsets, drafted = tensors.pop("d2t", None), tensors.pop("t2d", None)
    public = PublicCheckpoint(folder, config, tensors, any(MIDLAYER in name for name in stored))
    layout = find_layout(public)
    spec = read_spec(layout, public, target)
    if tap_override is not None:
        spec = _override_taps(spec, tap_override)
    _check_fit(folder, spec, target)
    _check_taps(public, spec, target)
    named = tensors if OWN in config else name_tensors(spec, tensors)
    check_tensors(folder, spec, named)
    return DrafterCheckpoint(spec, named, read_draft_ids(folder, spec, offsets, drafted), layout.name)


def _override_taps(spec: DrafterSpec, taps: tuple[int, ...]) -> DrafterSpec:
    if not spec.taps:
        raise ConfigError(
            f"drafter_options: layers is {list(taps)}, but a drafter of method {spec.method} reads no layer"
        )
    return replace(spec, taps=taps)


def _check_fit(folder: Path, spec: DrafterSpec, target: ModelSpec) -> None:
    if spec.vocab_size != target.vocab_size:
        raise ConfigError(
            f"the drafter {folder} has a vocabulary of {spec.vocab_size} token ids, the target has {target.vocab_size}"
        )
    if spec.target_hidden_size != target.hidden_size:
        raise ConfigError(
            f"the drafter {folder} reads states of width {spec.target_hidden_size}, the target's have width "
            f"{target.hidden_size} (hidden_size)"
        )
    lacking = [part for part, is_own in (("embedding", spec.own_embedding), ("head", spec.own_head)) if not is_own]
    if spec.width != target.hidden_size and lacking:
        raise ConfigError(
            f"the drafter {folder} has width {spec.width} and no {lacking[0]} of its own; the target's has width "
            f"{target.hidden_size} (hidden_size)"
        )
    if spec.mask_token_id is not None and not 0 <= spec.mask_token_id < target.vocab_size:
        raise ConfigError(
            f"the drafter {folder} has the mask_token_id {spec.mask_token_id}; the target's token ids are 0 to "
            f"{target.vocab_size - 1}"
        )


def _check_taps(public: PublicCheckpoint, spec: DrafterSpec, target: ModelSpec) -> None:
    folder, taps, fc = public.folder, list(spec.taps), public.tensors.get("fc.weight")
    beyond = [tap for tap in taps if not -1 <= tap < target.n_layers]
    if beyond:
        raise ConfigError(
            f"the drafter {folder} reads the outputs of layers {taps}; the target has no layer {beyond[0]}, its layers "
            f"are 0 to {target.n_layers - 1}"
        )
    if taps and fc is not None and fc.shape[-1] != len(taps) * target.hidden_size:
        raise ConfigError(
            f"the drafter {folder} reads {fc.shape[-1] / target.hidden_size:g} states of width {target.hidden_size} "
            f"(fc.weight), but {len(taps)} layers are named: {taps}"
        )
