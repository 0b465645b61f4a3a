"""DFlash (2602.06036), JetSpec (2606.18394) and DSpark (2607.05147): one layout with more or fewer fields in an object
``dflash_config``, which DeepSpec has beside the others. DeepSpec's blocks draft from their first slot on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.drafter.checkpoint import taps
from engine.drafter.checkpoint.configs import DFlashConfig, DFlashFields, LayerConfig, decode
from engine.drafter.checkpoint.eagle import head_rows
from engine.drafter.checkpoint.layer_shape import layer_shape
from engine.drafter.spec import DrafterSpec, MarkovHeadKind
from engine.errors import UnsupportedModelError
from engine.model.spec import ModelSpec

_HEADS = (None, "dflash", "dspark")


def read_dflash(folder: Path, config: dict[str, Any], tensors: Mapping[str, Tensor], target: ModelSpec) -> DrafterSpec:
    """The description of a drafter with an object ``dflash_config``.

    Raises:
        UnsupportedModelError: it has a head that is not run, or lacks the size of its block or its mask's token.
    """
    fields = decode(folder, config, DFlashConfig)
    inner = fields.dflash_config
    block = fields.block_size or inner.block_size
    return _spec(folder, fields, inner, block, inner.shift_label, tensors, target)


def read_deepspec(
    folder: Path, config: dict[str, Any], tensors: Mapping[str, Tensor], target: ModelSpec
) -> DrafterSpec:
    """The description of a drafter that DeepSpec trained.

    Raises:
        UnsupportedModelError: as ``read_dflash``.
    """
    fields = decode(folder, config, DFlashFields)
    return _spec(folder, decode(folder, config, LayerConfig), fields, fields.block_size, True, tensors, target)


def block_heads(
    rank: int, kind: MarkovHeadKind, confidence_with_markov: bool, tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """What a description says of the heads behind a block, which a config may leave to the tensors."""
    return {
        "markov_rank": rank or (tensors["markov.w1"].shape[-1] if "markov.w1" in tensors else 0),
        "markov_head": kind,
        "has_confidence": "confidence.weight" in tensors,
        "confidence_with_markov": "confidence.weight" in tensors and confidence_with_markov,
    }


def _spec(
    folder: Path,
    layers: LayerConfig,
    fields: DFlashFields,
    block: int | None,
    anchored: bool,
    tensors: Mapping[str, Tensor],
    target: ModelSpec,
) -> DrafterSpec:
    file = folder / "config.json"
    if fields.projector_type not in _HEADS:
        raise UnsupportedModelError(
            f"{file}: projector_type is {fields.projector_type!r}; only plain blocks and DSpark's heads are run"
        )
    if block is None or fields.mask_token_id is None:
        missing = "block_size" if block is None else "mask_token_id"
        raise UnsupportedModelError(f"{file} lacks {missing}, which DFlash cannot do without")
    return DrafterSpec(
        method="dflash",
        generation=1,
        target_hidden_size=layers.hidden_size,
        vocab_size=layers.vocab_size,
        draft_vocab_size=head_rows(tensors) or layers.vocab_size,
        taps=taps.of_dflash(fields.target_layer_ids, target.n_layers, layers.num_hidden_layers),
        layers=layer_shape(folder, layers, tensors),
        n_drafts=block if anchored else block - 1,
        own_embedding="embed.weight" in tensors,
        own_head="head.weight" in tensors,
        mask_token_id=fields.mask_token_id,
        causal_block=fields.causal_head,
        sample_from_anchor=anchored,
        **block_heads(fields.markov_rank, fields.markov_head_type, fields.confidence_head_with_markov, tensors),
    )
