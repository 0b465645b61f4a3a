"""From the names that public layouts give to tensors to the normalised ones, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

FIRST = "layers.0."
MIDDLE = "midlayer."  # what EAGLE-3's authors call its one layer
_PREFIX = re.compile(r"^(model|medusa_heads?|speculator)\.(?=.)")
_IGNORED = re.compile(r"^(verifier_norm|verifier_lm_head|t2d|d2t)\b|\brotary_emb\.")
_LAYER = re.compile(r"^(layers\.\d+)\.(.+)\.(weight|bias)$")
_MEDUSA_BLOCK = re.compile(r"^(\d+)\.(\d+)\.linear\.(weight|bias)$")
_MEDUSA_OUT = re.compile(r"^(\d+)\.(\d+)\.weight$")
_HEAD = re.compile(r"^heads\.(\d+)\.(?:out|blocks\.(\d+))\.(weight|bias)$")
_FC_NORM = re.compile(r"^fc_norm\.(\d+)\.weight$")
_WHOLE = {
    "embed_tokens.weight": "embed.weight",
    "lm_head.weight": "head.weight",
    "input_norm.weight": "fc_norm.weight",
    "mask_hidden": "mask_state",
    "markov_head.markov_w1.weight": "markov.w1",
    "markov_head.markov_w2.weight": "markov.w2",
    "markov_head.gate_proj.weight": "markov.gate.weight",
    "markov_head.gate_proj.bias": "markov.gate.bias",
    "markov_head.joint_proj.weight": "markov.joint.weight",
    "markov_head.joint_proj.bias": "markov.joint.bias",
    "confidence_head.proj.weight": "confidence.weight",
    "confidence_head.proj.bias": "confidence.bias",
}
_PARTS = {
    **{f"self_attn.{part}_proj": part for part in "qkvo"},
    **{f"self_attn.{part}_norm": f"{part}_norm" for part in "qk"},
    **{f"mlp.{part}_proj": part for part in ("gate", "up", "down")},
    "input_layernorm": "input_norm",
    "post_attention_layernorm": "ffn_norm",
}
_PUBLIC_WHOLE = {normal: public for public, normal in _WHOLE.items()}
_PUBLIC_PARTS = {**{normal: public for public, normal in _PARTS.items()}, "embed_norm": "input_layernorm"}


def normalised(public: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under their normalised names. A name that no layout has is kept; what a drafter does not need is not:
    tables of vocabularies, which ``vocabulary`` reads, and copies of the target's tensors."""
    bare = {_PREFIX.sub("", name): tensor for name, tensor in public.items()}
    plain = {name.replace(MIDDLE, FIRST): tensor for name, tensor in bare.items()}
    paired = f"{FIRST}hidden_norm.weight" in plain or any(name.startswith(MIDDLE) for name in bare)
    named = {_normal(name, paired): tensor for name, tensor in plain.items() if not _IGNORED.search(name)}
    if "mask_state" in named:
        named["mask_state"] = named["mask_state"].flatten()  # stored as [1, 1, W]
    return named


def published(tensors: Mapping[str, Tensor], first: str = FIRST, n_blocks: int = 0) -> dict[str, Tensor]:
    """The tensors under public names.

    Args:
        tensors: under normalised ones.
        first: of the first layer.
        n_blocks: residual blocks of each Medusa head.
    """
    named = {_public(name, first, n_blocks): tensor for name, tensor in tensors.items()}
    if "mask_hidden" in named:
        named["mask_hidden"] = named["mask_hidden"][None, None]
    return named


def vocabulary_table(public: Mapping[str, Tensor], name: str) -> Tensor | None:
    """``d2t`` or ``t2d``, if the checkpoint has it."""
    return next((tensor for given, tensor in public.items() if _PREFIX.sub("", given) == name), None)


def _normal(name: str, paired: bool) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    if match := _LAYER.match(name):
        layer, part, kind = match.groups()
        if paired and layer + "." == FIRST and part == "input_layernorm":
            return f"{FIRST}embed_norm.{kind}"
        return f"{layer}.{_PARTS.get(part, part)}.{kind}"
    if match := _FC_NORM.match(name):
        return f"fc_norms.{match[1]}.weight"
    if match := _MEDUSA_BLOCK.match(name):
        return f"heads.{match[1]}.blocks.{match[2]}.{match[3]}"
    if match := _MEDUSA_OUT.match(name):
        return f"heads.{match[1]}.out.weight"
    return name


def _public(name: str, first: str, n_blocks: int) -> str:
    if name in _PUBLIC_WHOLE:
        return _PUBLIC_WHOLE[name]
    if match := _LAYER.match(name):
        layer, part, kind = match.groups()
        owner = first if layer + "." == FIRST else layer + "."
        return f"{owner}{_PUBLIC_PARTS.get(part, part)}.{kind}"
    if match := _HEAD.match(name):
        head, block, kind = match.groups()
        return f"{head}.{block}.linear.{kind}" if block else f"{head}.{n_blocks}.{kind}"
    return re.sub(r"^fc_norms\.", "fc_norm.", name)
