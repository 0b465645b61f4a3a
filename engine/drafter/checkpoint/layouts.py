"""The public layouts of drafter checkpoints: one row of ``LAYOUTS`` each.

Layouts of one method share their fields, so one struct, ``DrafterConfig``, decodes all of them, and one function turns
it into a spec. Tensors show what configs often omit: norms, biases, heads, and Medusa's number of heads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.drafter.checkpoint.config import DrafterConfig
from engine.drafter.checkpoint.ids import default_taps, dflash_taps, taps_of_input_ids
from engine.drafter.checkpoint.layers import LayerConfig, decode, read_layer_shape
from engine.drafter.spec import DrafterSpec, Method
from engine.errors import UnsupportedModelError
from engine.model.checkpoint_files import CONFIG
from engine.model.spec import ModelSpec

OWN = "spectra_drafter"
SPECULATORS = ("eagle3", "peagle", "dflash", "dspark")  # supported values of speculators_model_type
NESTED = ("eagle_config", "dflash_config", "transformer_layer_config")  # objects with fields of the config
_AUX_IDS = "eagle_aux_hidden_state_layer_ids"
_LAYER_FIELDS = LayerConfig.__struct_fields__
_PROJECTORS = (None, "dflash", "dspark")
_MEDUSA_TENSOR = re.compile(r"^(\d+)\.(\d+)\.(linear\.)?")
Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PublicCheckpoint:
    """A checkpoint as its authors published it."""

    folder: Path
    config: dict[str, Any]
    tensors: Mapping[str, Tensor]  # by the public names in ``tensors.TABLE``, without vocabulary tables
    has_midlayer: bool  # the authors' name of EAGLE-3's layer

    @property
    def speculators_type(self) -> object:
        return self.config.get("speculators_model_type")

    @property
    def has_pair_layer(self) -> bool:
        """Whether the first layer reads [token embedding; state], as in EAGLE-3 and P-EAGLE."""
        return self.has_midlayer or "layers.0.hidden_norm.weight" in self.tensors


@dataclass(frozen=True, slots=True)
class Layout:
    """One public layout."""

    name: str  # for messages
    matches: Callable[[PublicCheckpoint], bool]
    method: Method | None  # None: the checkpoint has a spec in our own layout
    generation: int = 1
    drafts_from_anchor: bool = False  # DFlash: slot 0 drafts, unless the config says otherwise

    @property
    def is_speculators(self) -> bool:
        return self.name.startswith("speculators ")

    @property
    def reads_input_ids(self) -> bool:
        """Whether the drafter is an EAGLE-3 or a P-EAGLE: it reads taps, named by the layers that read them."""
        return self.generation == 3 or self.method == "p-eagle"


LAYOUTS = (  # the first match counts
    Layout("spectra", lambda public: OWN in public.config, None),
    Layout("speculators eagle3", lambda public: public.speculators_type == "eagle3", "eagle", 3),
    Layout("speculators peagle", lambda public: public.speculators_type == "peagle", "p-eagle"),
    Layout("speculators dflash", lambda public: public.speculators_type == "dflash", "dflash"),
    Layout("speculators dspark", lambda public: public.speculators_type == "dspark", "dflash", drafts_from_anchor=True),
    Layout("P-EAGLE", lambda public: public.has_pair_layer and "mask_hidden" in public.tensors, "p-eagle"),
    Layout("DeepSpec EAGLE-3", lambda public: public.has_pair_layer and "ttt_length" in public.config, "eagle", 3),
    Layout("EAGLE-3", lambda public: public.has_pair_layer, "eagle", 3),
    Layout("DFlash", lambda public: "dflash_config" in public.config, "dflash"),  # JetSpec and DSpark, too
    Layout("DeepSpec", lambda public: "target_layer_ids" in public.config, "dflash", drafts_from_anchor=True),
    Layout("Medusa", lambda public: any(_MEDUSA_TENSOR.match(name) for name in public.tensors), "medusa"),
    Layout("EAGLE", lambda public: "fc.weight" in public.tensors, "eagle"),  # EAGLE-1 and 2
)


def refuse_unsupported(folder: Path, config: Mapping[str, Any]) -> None:
    """Raises UnsupportedModelError if the config belongs to a known drafter that is not supported; reads no weights."""
    speculators = config.get("speculators_model_type")
    kinds = [*(config.get("architectures") or ()), config.get("model_type"), speculators]
    described = " ".join(str(kind) for kind in kinds).lower()
    if any(field.startswith("hydra_") for field in config) or any(folder.glob("hydra_lm_head.*")):
        raise UnsupportedModelError(
            f"{folder} holds Hydra heads, which are not supported: each reads the tokens drafted before it, so a tree "
            "takes one run per level; use Medusa's heads or an EAGLE drafter"
        )
    if "mtp" in described:
        raise _mtp_error(folder)
    if "pard_token" in config and "forcausallm" in described and "eagle" not in described:
        raise UnsupportedModelError(
            f"{folder} holds a whole language model with mask tokens (PARD, pard_token), which does not read the "
            "target's states; use it as a draft model (--draft-model), which drafts token by token"
        )
    if speculators is not None and speculators not in SPECULATORS:
        raise UnsupportedModelError(
            f"{folder}: speculators_model_type is {speculators!r}; supported are {', '.join(SPECULATORS)}"
        )


def find_layout(public: PublicCheckpoint) -> Layout:
    """The first layout that matches.

    Raises:
        UnsupportedModelError: none does.
    """
    if any(name.startswith("mtp.") for name in public.tensors) and OWN not in public.config:
        raise _mtp_error(public.folder)
    for layout in LAYOUTS:
        if layout.matches(public):
            return layout
    raise UnsupportedModelError(
        f"{public.folder} holds no known drafter; supported are EAGLE, EAGLE-3, P-EAGLE, Medusa, DFlash, DeepSpec, "
        "speculators and ParallelSpec. Use a complete language model as a draft model (--draft-model)"
    )


def read_spec(layout: Layout, public: PublicCheckpoint, target: ModelSpec) -> DrafterSpec:
    """The spec of a checkpoint with this layout.

    Raises:
        UnsupportedModelError: a field is missing, has a wrong type, or has an unsupported value.
    """
    if layout.method is None:
        return _read_own_spec(public)
    if layout.method == "medusa":
        return _read_medusa_spec(public)
    tensors, fields = public.tensors, _decode_fields(layout, public)
    _check_fields(layout, public, fields)
    layers = read_layer_shape(public.folder, fields, tensors)
    own_head, markov = tensors.get("lm_head.weight"), tensors.get("markov_head.markov_w1.weight")
    has_confidence, with_markov = "confidence_head.proj.weight" in tensors, fields.confidence_head_with_markov
    n_vocab, is_dflash, reads_taps = fields.vocab_size, layout.method == "dflash", layout.reads_input_ids
    if layout.name != "EAGLE" and own_head is not None:
        n_vocab = len(own_head)
    if (reads_taps or layout.is_speculators) and fields.draft_vocab_size:
        n_vocab = fields.draft_vocab_size
    return DrafterSpec(
        method=layout.method,
        generation=layout.generation,
        target_hidden_size=fields.target_hidden_size or fields.hidden_size,
        vocab_size=fields.vocab_size,
        draft_vocab_size=n_vocab,
        taps=_read_taps(layout, fields, target),
        layers=layers,
        n_drafts=_read_n_drafts(layout, fields),
        own_embedding="embed_tokens.weight" in tensors,
        own_head=own_head is not None,
        fc_bias=layout.name == "EAGLE" and "fc.bias" in tensors,
        norm_before_fc=reads_taps and (fields.norm_before_fc or "input_norm.weight" in tensors),
        fc_norm=reads_taps and (fields.fc_norm or "fc_norm.0.weight" in tensors),
        norm_output=reads_taps and fields.norm_output,
        norm_before_residual=reads_taps and fields.norm_before_residual,
        mask_token_id=fields.mask_token if layout.method in ("p-eagle", "dflash") else None,
        has_mask_state=layout.method == "p-eagle" and "mask_hidden" in tensors,
        causal_block=is_dflash and _has_causal_block(layout, fields, layers.window),
        sample_from_anchor=is_dflash and _drafts_from_anchor(layout, fields),
        markov_rank=(fields.markov_rank or (0 if markov is None else markov.shape[-1])) if is_dflash else 0,
        markov_head=fields.markov_head_type,
        has_confidence=has_confidence,
        confidence_with_markov=has_confidence and (layout.is_speculators if with_markov is None else with_markov),
    )


def _decode_fields(layout: Layout, public: PublicCheckpoint) -> DrafterConfig:
    """Decode the fields of this layout, each from the object where it belongs; a null counts as a missing field.

    In speculators, ``transformer_layer_config`` describes the layers, and fields outside of it all else. In DFlash,
    fields outside of ``dflash_config`` describe the layers and the block size. In EAGLE, fields outside of
    ``eagle_config`` come first, but the mask token of a ``dflash_config`` comes before all others, as in vLLM.
    """
    objects = [public.config, *(public.config.get(name) or {} for name in NESTED)]
    if not all(isinstance(fields, dict) for fields in objects):
        raise UnsupportedModelError(f"{public.folder / CONFIG}: {', '.join(NESTED)} must be objects, if given")
    outer, eagle, dflash, layers = ({k: v for k, v in fields.items() if v is not None} for fields in objects)
    if layout.is_speculators:
        flat = {k: v for k, v in outer.items() if k not in _LAYER_FIELDS}
        flat |= {k: v for k, v in layers.items() if k in _LAYER_FIELDS}
    elif layout.name == "DFlash":
        is_outer = {*_LAYER_FIELDS, "block_size"}
        flat = dflash | {k: v for k, v in outer.items() if k in is_outer}
    elif layout.reads_input_ids:
        flat = eagle | outer | {k: v for k, v in dflash.items() if k == "mask_token_id"}
        flat[_AUX_IDS] = outer.get(_AUX_IDS) or eagle.get(_AUX_IDS)
    else:
        flat = outer
    return decode(public.folder, flat, DrafterConfig)


def _check_fields(layout: Layout, public: PublicCheckpoint, fields: DrafterConfig) -> None:
    file = public.folder / CONFIG
    if layout.reads_input_ids and not layout.is_speculators and not fields.use_aux_hidden_state:
        raise UnsupportedModelError(
            f"{file}: eagle_config.use_aux_hidden_state is false; an EAGLE-3 must read the states of target layers"
        )
    if layout.method == "eagle":
        return
    if fields.projector_type not in _PROJECTORS:
        raise UnsupportedModelError(
            f"{file}: projector_type is {fields.projector_type!r}; it must be 'dflash' or 'dspark', or be left out"
        )
    missing = ["mask_token_id"] if fields.mask_token is None else []
    if layout.method == "dflash" and not layout.is_speculators and fields.block_size is None:
        missing.append("block_size")
    if missing:
        raise UnsupportedModelError(f"{file} lacks {' and '.join(missing)}, which {layout.name} needs")


def _read_taps(layout: Layout, fields: DrafterConfig, target: ModelSpec) -> tuple[int, ...]:
    if layout.method == "eagle" and layout.generation == 1:
        return ()
    if layout.method == "dflash" and layout.is_speculators:
        ids = fields.aux_hidden_state_layer_ids
        return tuple(layer - 1 for layer in ids) if ids else default_taps(target.n_layers)
    if fields.target_layer_ids or (fields.target_layer_ids is not None and not layout.is_speculators):
        return fields.target_layer_ids
    if layout.method == "dflash":
        return dflash_taps(target.n_layers, fields.num_hidden_layers)
    return taps_of_input_ids(fields.eagle_aux_hidden_state_layer_ids, target.n_layers)


def _read_n_drafts(layout: Layout, fields: DrafterConfig) -> int | None:
    if layout.method == "dflash":
        size = 8 if fields.block_size is None else fields.block_size  # 8: speculators' default
        return size if _drafts_from_anchor(layout, fields) else size - 1
    return fields.speculators_config.n_drafts if layout.method == "p-eagle" else None


def _drafts_from_anchor(layout: Layout, fields: DrafterConfig) -> bool:
    if layout.is_speculators and fields.sample_from_anchor is not None:
        return fields.sample_from_anchor
    return layout.drafts_from_anchor or (layout.name == "DFlash" and bool(fields.shift_label))


def _has_causal_block(layout: Layout, fields: DrafterConfig, window: int | None) -> bool:
    if layout.is_speculators:
        return window is not None and not fields.sliding_window_non_causal
    return fields.causal_head


def uses_own_layout(spec: DrafterSpec) -> bool:
    """Return whether no public layout describes the drafter.

    These are ParallelSpec, a drafter that scores with some rows of the target's head, and Medusa with such a head.
    """
    is_unpublished_medusa = spec.method == "medusa" and (not spec.own_head or spec.draft_vocab_size < spec.vocab_size)
    return spec.is_parallelspec or spec.uses_part_of_target_head or is_unpublished_medusa


def _read_own_spec(public: PublicCheckpoint) -> DrafterSpec:
    file, spec = public.folder / CONFIG, decode(public.folder, public.config[OWN], DrafterSpec)
    if not uses_own_layout(spec):
        raise UnsupportedModelError(
            f"{file}: {OWN}.method is {spec.method!r} with a whole vocabulary; write it in the public layout of its "
            "method"
        )
    if spec.is_parallelspec and (spec.layers is None or not spec.n_drafts or spec.n_drafts < 2):
        raise UnsupportedModelError(
            f"{file}: {OWN} has n_drafts {spec.n_drafts} and {'no ' if spec.layers is None else ''}layers; it needs "
            "layers and n_drafts, which is at least 2"
        )
    return spec


def _read_medusa_spec(public: PublicCheckpoint) -> DrafterSpec:
    """The spec of Medusa heads, read from tensors alone: public configs say 2 heads and mean 5."""
    matches = [match for match in map(_MEDUSA_TENSOR.match, public.tensors) if match]
    n_heads = 1 + max(int(match[1]) for match in matches)
    n_blocks = 1 + max((int(match[2]) for match in matches if match[3]), default=-1)
    out = public.tensors.get(f"0.{n_blocks}.weight")
    if out is None or out.dim() != 2:
        raise UnsupportedModelError(f"{public.folder} lacks the output matrix of Medusa head 0 (0.{n_blocks}.weight)")
    vocab_size, hidden = out.shape
    return DrafterSpec(
        method="medusa",
        generation=1,
        target_hidden_size=hidden,
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size,
        taps=(),
        layers=None,
        n_drafts=n_heads,
        n_heads=n_heads,
        n_head_layers=n_blocks,
        own_head=True,
    )


def _mtp_error(folder: Path) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{folder} holds a multi-token-prediction layer (mtp), which belongs to the target that was trained with it; "
        "no supported model family has one"
    )
