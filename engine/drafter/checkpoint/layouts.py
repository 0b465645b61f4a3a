"""Which layout a checkpoint has, and which checkpoints are none of a drafter that is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.drafter.checkpoint.configs import decode
from engine.drafter.checkpoint.dflash import read_deepspec, read_dflash
from engine.drafter.checkpoint.eagle import read_eagle1, read_eagle3
from engine.drafter.checkpoint.medusa import read_medusa
from engine.drafter.checkpoint.speculators_layout import read_speculators
from engine.drafter.spec import DrafterSpec
from engine.errors import UnsupportedModelError
from engine.model.spec import ModelSpec

OWN = "spectra_drafter"
Reader = Callable[[Path, dict[str, Any], Mapping[str, Tensor], ModelSpec], DrafterSpec]


def refuse(folder: Path, config: Mapping[str, Any]) -> None:
    """Whether a config is one of a drafter that is known, but not run: without a look at its weights.

    Raises:
        UnsupportedModelError: says why, and what could be done instead.
    """
    kinds = [*(config.get("architectures") or ()), config.get("model_type"), config.get("speculators_model_type")]
    described = " ".join(str(kind) for kind in kinds).lower()
    if any(field.startswith("hydra_") for field in config) or any(folder.glob("hydra_lm_head.*")):
        raise UnsupportedModelError(
            f"{folder} holds Hydra heads: each reads the tokens drafted before it, so that a tree takes one run per "
            f"level; they are not run. Medusa's heads and EAGLE's drafters are"
        )
    if "mtp" in described:
        raise _no_mtp(folder)
    if "pard_token" in config and "forcausallm" in described and "eagle" not in described:
        raise UnsupportedModelError(
            f"{folder} holds a whole language model with mask tokens (PARD, pard_token): no drafter on the target's "
            f"states. It would be a draft model (--draft-model), which drafts token by token"
        )


def recognise(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[str, Reader]:
    """The name of a checkpoint's layout, and what reads its description.

    Args:
        folder: of the checkpoint.
        config: its config.json.
        tensors: under normalised names.

    Raises:
        UnsupportedModelError: it is none that is known.
    """
    if OWN in config:
        return "spectra", read_own
    if "speculators_model_type" in config:
        return f"speculators {config['speculators_model_type']}", read_speculators
    if any(name.startswith("mtp.") for name in tensors):
        raise _no_mtp(folder)
    if {"layers.0.hidden_norm.weight", "layers.0.embed_norm.weight"} & tensors.keys():
        return _eagle3_name(config, tensors), read_eagle3
    if "dflash_config" in config:
        return "DFlash", read_dflash
    if "target_layer_ids" in config:
        return "DeepSpec", read_deepspec
    if any(name.startswith("heads.") for name in tensors):
        return "Medusa", read_medusa
    if "fc.weight" in tensors:
        return "EAGLE", read_eagle1
    raise UnsupportedModelError(
        f"{folder} holds no drafter that is known; read are EAGLE, EAGLE-3, P-EAGLE, Medusa, DFlash, DeepSpec, "
        f"speculators and ParallelSpec. A language model of its own is a draft model (--draft-model)"
    )


def read_own(folder: Path, config: dict[str, Any], tensors: Mapping[str, Tensor], target: ModelSpec) -> DrafterSpec:
    """The description in our own layout, which is a description already."""
    spec = decode(folder, config[OWN], DrafterSpec)
    if not spec.method.startswith("parallelspec"):
        raise UnsupportedModelError(
            f"{folder / 'config.json'}: {OWN}.method is {spec.method!r}; this layout is ParallelSpec's, and other "
            f"methods have public ones"
        )
    if spec.layers is None or not spec.n_drafts or spec.n_drafts < 2:
        raise UnsupportedModelError(
            f"{folder / 'config.json'}: {OWN} needs layers and n_drafts, which is at least 2; it has n_drafts "
            f"{spec.n_drafts}"
        )
    return spec


def _no_mtp(folder: Path) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{folder} holds a multi-token-prediction layer (mtp): it is part of a target that was trained with it, and no "
        f"family that is served has one"
    )


def _eagle3_name(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    if "mask_state" in tensors:
        return "P-EAGLE"
    return "DeepSpec EAGLE-3" if "ttt_length" in config else "EAGLE-3"
