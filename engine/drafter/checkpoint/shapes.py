"""Which tensors a drafter has, and of what shapes: what its description says against what its checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from engine.drafter.spec import DrafterSpec, LayerShape
from engine.errors import UnsupportedModelError

Shapes = dict[str, tuple[int, ...]]
_NAMED = 4  # tensors that a message lists


def check_tensors(folder: Path, spec: DrafterSpec, tensors: Mapping[str, Tensor]) -> None:
    """Whether a checkpoint has every tensor that its drafter needs, none that it has no use for, and each in its shape.

    Raises:
        UnsupportedModelError: names the first that differ, and how.
    """
    needed, allowed = needed_shapes(spec), optional_shapes(spec)
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise UnsupportedModelError(f"{folder} lacks {_some(missing)} of a drafter of method {spec.method}")
    known = needed | allowed
    left = [name for name in tensors if name not in known]
    if left:
        raise UnsupportedModelError(f"{folder} has {_some(left)}, for which method {spec.method} has no use")
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != known[name]:
            raise UnsupportedModelError(
                f"{name!r} in {folder} has the shape {list(tensor.shape)}, but the drafter that config.json describes "
                f"needs {list(known[name])}"
            )
        if not tensor.is_floating_point():
            raise UnsupportedModelError(f"{name!r} in {folder} has the dtype {tensor.dtype}; read are floating ones")


def needed_shapes(spec: DrafterSpec) -> Shapes:
    """Of every tensor that a drafter cannot do without, by normalised name."""
    if spec.method == "medusa":
        return _medusa(spec)
    assert spec.layers is not None, f"{spec.method} has transformer layers"
    shapes = _ends(spec, spec.layers)
    for index in range(spec.layers.n_layers):
        shapes |= {f"layers.{index}.{part}": shape for part, shape in _layer(spec, spec.layers, index).items()}
    return shapes


def optional_shapes(spec: DrafterSpec) -> Shapes:
    """Of tensors that a drafter of this description may have or lack."""
    if spec.layers is None:
        return {}
    hidden = spec.layers.hidden_size
    shapes: Shapes = {}
    if spec.layers.attention_bias:
        shapes |= {f"layers.{index}.o.bias": (hidden,) for index in range(spec.layers.n_layers)}
    if spec.method.startswith("parallelspec"):
        shapes |= {"norm.weight": (hidden,), "layers.0.input_norm.weight": (hidden,)}
        shapes |= {"fc.weight": (hidden, hidden + _width(spec))}
    return shapes


def _medusa(spec: DrafterSpec) -> Shapes:
    width = spec.target_hidden_size
    shapes: Shapes = {}
    for head in range(spec.n_heads):
        for block in range(spec.n_head_layers):
            shapes[f"heads.{head}.blocks.{block}.weight"] = (width, width)
            shapes[f"heads.{head}.blocks.{block}.bias"] = (width,)
        shapes[f"heads.{head}.out.weight"] = (spec.vocab_size, width)
    return shapes


def _ends(spec: DrafterSpec, layers: LayerShape) -> Shapes:
    """What lies before and behind the layers."""
    hidden, width = layers.hidden_size, _width(spec)
    shapes: Shapes = {}
    if spec.own_embedding:
        shapes["embed.weight"] = (spec.vocab_size, hidden)
    if spec.own_head:
        shapes["head.weight"] = (spec.draft_vocab_size, hidden)
    if spec.taps and not spec.method.startswith("parallelspec"):
        shapes |= {"norm.weight": (hidden,), "fc.weight": (hidden, width)}
    elif spec.method in ("eagle", "parallelspec-eagle"):
        shapes["fc.weight"] = (hidden, hidden + width)
    if spec.fc_bias:
        shapes["fc.bias"] = (hidden,)
    if spec.norm_before_fc:
        shapes["fc_norm.weight"] = (width,)
    if spec.fc_norm:
        shapes |= {f"fc_norms.{tap}.weight": (spec.target_hidden_size,) for tap in range(len(spec.taps))}
    if spec.has_mask_state:
        shapes["mask_state"] = (width,)
    if spec.method.startswith("parallelspec"):
        shapes["mask_embeddings"] = ((spec.n_drafts or 1) - 1, hidden)
    if spec.method == "dflash":
        shapes |= {"hidden_norm.weight": (hidden,)} | _markov(spec, hidden)
    return shapes


def _markov(spec: DrafterSpec, hidden: int) -> Shapes:
    rank = spec.markov_rank
    shapes: Shapes = {}
    if rank:
        shapes |= {"markov.w1": (spec.vocab_size, rank), "markov.w2": (spec.draft_vocab_size, rank)}
        if spec.markov_head == "gated":
            shapes |= {"markov.gate.weight": (rank, hidden + rank), "markov.gate.bias": (rank,)}
        if spec.markov_head == "rnn":
            shapes |= {"markov.joint.weight": (3 * rank, 2 * rank + hidden), "markov.joint.bias": (3 * rank,)}
    if spec.has_confidence:
        read = hidden + (rank if spec.confidence_with_markov else 0)
        shapes |= {"confidence.weight": (1, read), "confidence.bias": (1,)}
    return shapes


def _layer(spec: DrafterSpec, layers: LayerShape, index: int) -> Shapes:
    hidden, ffn = layers.hidden_size, layers.ffn_size
    queries, keys = layers.n_heads * layers.head_dim, layers.n_kv_heads * layers.head_dim
    paired = index == 0 and (spec.method == "p-eagle" or (spec.method == "eagle" and spec.generation == 3))
    read = 2 * hidden if paired else hidden
    shapes: Shapes = {
        "q.weight": (queries, read),
        "k.weight": (keys, read),
        "v.weight": (keys, read),
        "o.weight": (hidden, queries),
        "ffn_norm.weight": (hidden,),
        "gate.weight": (ffn, hidden),
        "up.weight": (ffn, hidden),
        "down.weight": (hidden, ffn),
    }
    if paired:
        shapes |= {"embed_norm.weight": (hidden,), "hidden_norm.weight": (hidden,)}
    elif index > 0 or spec.method == "dflash":
        shapes["input_norm.weight"] = (hidden,)
    if layers.attention_bias:
        shapes |= {"q.bias": (queries,), "k.bias": (keys,), "v.bias": (keys,)}
    if layers.qk_norm:
        shapes |= {"q_norm.weight": (layers.head_dim,), "k_norm.weight": (layers.head_dim,)}
    return shapes


def _width(spec: DrafterSpec) -> int:
    """Of the target's states that a row reads."""
    return max(1, len(spec.taps)) * spec.target_hidden_size


def _some(names: list[str]) -> str:
    listed = ", ".join(repr(name) for name in names[:_NAMED])
    return f"tensors {listed}" + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
