"""The tensors of drafters: their names, names in public layouts, and shapes, for every method.

``TABLE`` is the only place that knows them: checkpoints are read, checked and written by its rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from torch import Tensor

from engine.drafter.spec import DrafterSpec, check_spec
from engine.errors import UnsupportedModelError

# Name, name in public layouts, shape, and the condition under which a drafter has the tensor (see ``_conditions``).
# Indices: {i} layer, {n} layer with an input norm, {t} tap, {k} Medusa head, {j} block of a Medusa head.
# Symbols: H width of the drafter, T of the target; V vocabulary of the target, D of the drafter's head; S width of the
# states that a row reads (all taps, or one final state); E width of the embedding that ``fc`` reads (0 with taps);
# X width of a layer's input (2H if it is [embedding; state]); Q, K width of all query and all key heads, d of one head;
# F feed-forward width; R rank of the Markov head; C the part of R that the confidence head reads; M mask rows.
TABLE = (
    ("embed.weight", "embed_tokens.weight", "V H", "own_embedding"),
    ("head.weight", "lm_head.weight", "D H", "head"),
    ("norm.weight", "norm.weight", "H", "final_norm"),
    ("fc.weight", "fc.weight", "H E+S", "fc"),  # reads the taps, or [token embedding; final state]
    ("fc.bias", "fc.bias", "H", "fc_bias"),
    ("fc_norm.weight", "input_norm.weight", "S", "norm_before_fc"),
    ("fc_norms.{t}.weight", "fc_norm.{t}.weight", "T", "fc_norm"),
    ("hidden_norm.weight", "hidden_norm.weight", "H", "dflash"),  # of the output of fc
    ("mask_state", "mask_hidden", "S", "mask_state"),  # published as [1, 1, S]
    ("mask_embeddings", "mask_embeddings", "M H", "parallelspec"),
    ("layers.{i}.q.weight", "layers.{i}.self_attn.q_proj.weight", "Q X", ""),
    ("layers.{i}.k.weight", "layers.{i}.self_attn.k_proj.weight", "K X", ""),
    ("layers.{i}.v.weight", "layers.{i}.self_attn.v_proj.weight", "K X", ""),
    ("layers.{i}.o.weight", "layers.{i}.self_attn.o_proj.weight", "H Q", ""),
    ("layers.{i}.q.bias", "layers.{i}.self_attn.q_proj.bias", "Q", "attention_bias"),
    ("layers.{i}.k.bias", "layers.{i}.self_attn.k_proj.bias", "K", "attention_bias"),
    ("layers.{i}.v.bias", "layers.{i}.self_attn.v_proj.bias", "K", "attention_bias"),
    ("layers.{i}.o.bias", "layers.{i}.self_attn.o_proj.bias", "H", "output_bias"),
    ("layers.{i}.q_norm.weight", "layers.{i}.self_attn.q_norm.weight", "d", "qk_norm"),
    ("layers.{i}.k_norm.weight", "layers.{i}.self_attn.k_norm.weight", "d", "qk_norm"),
    ("layers.{i}.gate.weight", "layers.{i}.mlp.gate_proj.weight", "F H", ""),
    ("layers.{i}.up.weight", "layers.{i}.mlp.up_proj.weight", "F H", ""),
    ("layers.{i}.down.weight", "layers.{i}.mlp.down_proj.weight", "H F", ""),
    ("layers.{i}.ffn_norm.weight", "layers.{i}.post_attention_layernorm.weight", "H", ""),
    ("layers.{n}.input_norm.weight", "layers.{n}.input_layernorm.weight", "H", ""),
    ("layers.0.embed_norm.weight", "layers.0.input_layernorm.weight", "H", "pair_layer"),
    ("layers.0.hidden_norm.weight", "layers.0.hidden_norm.weight", "H", "pair_layer"),
    ("heads.{k}.blocks.{j}.weight", "{k}.{j}.linear.weight", "T T", ""),
    ("heads.{k}.blocks.{j}.bias", "{k}.{j}.linear.bias", "T", ""),
    ("heads.{k}.out.weight", "{k}.{n_blocks}.weight", "D T", "medusa_heads"),
    ("markov.w1", "markov_head.markov_w1.weight", "V R", "markov"),  # embedding of the previous token
    ("markov.w2", "markov_head.markov_w2.weight", "D R", "markov"),  # from an embedding to logits
    ("markov.gate.weight", "markov_head.gate_proj.weight", "R H+R", "gated"),  # reads [state; embedding]
    ("markov.gate.bias", "markov_head.gate_proj.bias", "R", "gated"),
    ("markov.joint.weight", "markov_head.joint_proj.weight", "3R 2R+H", "rnn"),  # [memory; embedding; state] to
    ("markov.joint.bias", "markov_head.joint_proj.bias", "3R", "rnn"),  # [gate; new memory; output]
    ("confidence.weight", "confidence_head.proj.weight", "1 H+C", "confidence"),
    ("confidence.bias", "confidence_head.proj.bias", "1", "confidence"),
)
MIDLAYER = "midlayer."  # name of layer 0 in the layout of EAGLE-3's authors
_PREFIX = re.compile(r"^(model|medusa_heads?|speculator)\.(?=.)")
_COPY = re.compile(r"^(verifier_norm|verifier_lm_head)\b|\brotary_emb\.")  # tensors copied from the target
_LISTED = 4  # tensors listed in a message


@dataclass(frozen=True, slots=True)
class DrafterCheckpoint:
    """A trained drafter in memory."""

    spec: DrafterSpec
    tensors: dict[str, Tensor]  # by the names in ``TABLE``, on the CPU, in their stored dtype
    draft_ids: Tensor | None  # int64 [draft_vocab_size]: the target's id for each draft id; None: they are equal
    layout: str  # name for messages: "EAGLE-3", "speculators dflash"


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """A tensor that a drafter needs."""

    public_name: str
    shape: tuple[int, ...]


def describe_tensors(spec: DrafterSpec) -> dict[str, TensorDescription]:
    """Every tensor that a drafter needs, by name.

    Raises:
        ConfigError: the spec lacks a field that its method needs, or contradicts itself.
    """
    check_spec(spec)
    n_layers, conditions = 0 if spec.layers is None else spec.layers.n_layers, _conditions(spec)
    ranges = {
        "i": range(n_layers),
        "n": range(0 if spec.has_final_norm and not spec.has_pair_layer else 1, n_layers),
        "t": range(len(spec.taps)),
        "k": range(spec.n_heads),
        "j": range(spec.n_head_layers),
    }
    found: dict[str, TensorDescription] = {}
    for name, public_name, shape, condition in TABLE:
        if condition and not conditions[condition]:
            continue
        indices = re.findall(r"{(\w)}", name)
        for values in product(*(ranges[index] for index in indices)):
            chosen = dict(zip(indices, values, strict=True)) | {"n_blocks": spec.n_head_layers}
            sizes = _sizes(spec, is_first_layer=chosen.get("i") == 0)
            sizes_of_dims = tuple(_evaluate(size, sizes) for size in shape.split())
            found[name.format(**chosen)] = TensorDescription(public_name.format(**chosen), sizes_of_dims)
    return found


def strip_names(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's tensors by the public names in ``TABLE``: without prefixes, and without copies of the target's."""
    bare = {_PREFIX.sub("", name).replace(MIDLAYER, "layers.0."): tensor for name, tensor in stored.items()}
    return {name: tensor for name, tensor in bare.items() if not _COPY.search(name)}


def name_tensors(spec: DrafterSpec, public: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with public names by our names; those with unknown names keep them."""
    names = {one.public_name: name for name, one in describe_tensors(spec).items()}
    tensors = {names.get(name, name): tensor for name, tensor in public.items()}
    if "mask_state" in tensors:
        tensors["mask_state"] = tensors["mask_state"].flatten()
    return tensors


def publish_tensors(spec: DrafterSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by public names: the inverse of ``name_tensors``."""
    public = {one.public_name: tensors[name] for name, one in describe_tensors(spec).items()}
    if "mask_hidden" in public:
        public["mask_hidden"] = public["mask_hidden"][None, None]
    return public


def check_tensors(folder: Path, spec: DrafterSpec, tensors: Mapping[str, Tensor]) -> None:
    """Checks that a checkpoint has exactly the tensors that its drafter needs, with the right shapes.

    Raises:
        ConfigError: the spec lacks a field that its method needs, or contradicts itself.
        UnsupportedModelError: a tensor is missing or unknown, or has another shape or an integer dtype; names it.
    """
    needed = describe_tensors(spec)
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise UnsupportedModelError(f"{folder} lacks {_list(missing)}, which a drafter of method {spec.method} needs")
    unknown = [name for name in tensors if name not in needed]
    if unknown:
        raise UnsupportedModelError(f"{folder} has {_list(unknown)}, which method {spec.method} does not use")
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != needed[name].shape:
            raise UnsupportedModelError(
                f"{name!r} in {folder} has the shape {list(tensor.shape)}, but the drafter that config.json describes "
                f"needs {list(needed[name].shape)}"
            )
        if not tensor.is_floating_point():
            raise UnsupportedModelError(
                f"{name!r} in {folder} has the dtype {tensor.dtype}; it must be a floating-point dtype"
            )


def _conditions(spec: DrafterSpec) -> dict[str, bool]:
    layers, markov = spec.layers, spec.markov_rank > 0
    return {
        "own_embedding": spec.own_embedding,
        "head": spec.own_head and spec.method != "medusa",
        "medusa_heads": spec.own_head and spec.method == "medusa",
        "final_norm": spec.has_final_norm,
        "fc": spec.reads_states and layers is not None,
        "fc_bias": spec.fc_bias,
        "norm_before_fc": spec.norm_before_fc,
        "fc_norm": spec.fc_norm,
        "dflash": spec.method == "dflash",
        "mask_state": spec.has_mask_state,
        "parallelspec": spec.is_parallelspec,
        "attention_bias": layers is not None and layers.attention_bias,
        "output_bias": layers is not None and layers.output_bias,
        "qk_norm": layers is not None and layers.qk_norm,
        "pair_layer": spec.has_pair_layer,
        "markov": markov,
        "gated": markov and spec.markov_head == "gated",
        "rnn": markov and spec.markov_head == "rnn",
        "confidence": spec.has_confidence,
    }


def _sizes(spec: DrafterSpec, is_first_layer: bool) -> dict[str, int]:
    sizes = {
        "H": spec.width,
        "T": spec.target_hidden_size,
        "V": spec.vocab_size,
        "D": spec.draft_vocab_size,
        "S": spec.state_width,
        "E": 0 if spec.taps else spec.width,
        "X": spec.width * (2 if is_first_layer and spec.has_pair_layer else 1),
        "R": spec.markov_rank,
        "C": spec.markov_rank if spec.confidence_with_markov else 0,
        "M": (spec.n_drafts or 1) - 1,
    }
    layers = spec.layers
    if layers is not None:
        sizes |= {"Q": layers.n_heads * layers.head_dim, "K": layers.n_kv_heads * layers.head_dim}
        sizes |= {"d": layers.head_dim, "F": layers.ffn_size}
    return sizes


def _evaluate(size: str, sizes: Mapping[str, int]) -> int:
    """The value of a sum such as ``2R+H`` or ``1``."""
    terms = re.findall(r"(\d*)([A-Za-z]?)(?:\+|$)", size)
    return sum(int(factor or 1) * (sizes[symbol] if symbol else 1) for factor, symbol in terms if factor or symbol)


def _list(names: list[str]) -> str:
    listed = ", ".join(repr(name) for name in names[:_LISTED])
    return f"tensors {listed}" + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
