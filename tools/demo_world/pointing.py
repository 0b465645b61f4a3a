"""Train where the copying circuit looks, and nothing else: behind the longest repetition of what was just written.

The circuit as it is laid out compares two tokens by dot products of random projections. Embeddings that training has
made unequal, words of the same pieces ("in the violet box", "next to the violin") and texts that say a word twice
mislead it: on edits of texts it looked at the right token in 75 to 81 % of places, where comparing three tokens is
worth 91 % and comparing all of them 93 %. Here its queries and keys, and the head that sums up the tokens further back,
learn it from the places themselves, which takes a thousandth of what it takes from the next token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tools.demo_model.loop import Stream
from tools.demo_model.tokenizer import PAD_ID
from tools.demo_world.initial import Circuit, lay_out_context

ROWS, LENGTH = 16, 256  # of a step
RATE = 2.5e-3  # of Adam, at first; it falls in a line
MOST = 16  # tokens of a repetition that count
QUIET = 0.15  # how loud the summary is for layers that were trained without it


def train_pointing(model: LlamaForCausalLM, stream: Stream, steps: int) -> float:
    """Train for so many steps, in place; returns the last mean loss, nats per place that continues a repetition.

    Nothing is frozen afterwards. What else wrote where the summary is written begins anew, at nothing, and so do the
    other heads of the second layer, which share its keys.
    """
    circuit = Circuit.of(model.config)
    lay_out_context(model)
    loss = 0.0
    with _only_where_it_looks(model, circuit) as parameters:
        optimizer = torch.optim.Adam(parameters, lr=RATE, betas=(0.9, 0.98))
        for step in tqdm(range(steps), desc="where the copying circuit looks", mininterval=5):
            optimizer.param_groups[0]["lr"] = RATE * min((step + 1) / 50, 1 - 0.95 * step / steps)
            ids = stream.batch(ROWS, LENGTH)
            now = pointing_loss(model, circuit, ids)
            now.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            loss = now.item() if step == 0 else 0.98 * loss + 0.02 * now.item()
    _make_quiet(model, circuit)
    return loss


def pointing_loss(model: LlamaForCausalLM, circuit: Circuit, ids: torch.Tensor) -> torch.Tensor:
    """How little the circuit's heads look where a repetition goes on; ``ids`` int64 ``[rows, length + 1]``."""
    wanted = torch.from_numpy(continuations(ids.numpy())).to(model.device)
    scores = scores_of(model, circuit, ids[:, :-1].to(model.device)).log_softmax(-1)
    looked = scores.masked_fill(~wanted[:, None], -1e9).logsumexp(-1)  # [rows, heads, length]
    asked = wanted.any(-1)
    return -(looked * asked[:, None]).sum() / asked.sum().clamp(min=1) / looked.shape[1]


def scores_of(model: LlamaForCausalLM, circuit: Circuit, ids: torch.Tensor) -> torch.Tensor:
    """Attention logits of the circuit's heads in the second layer, ``[rows, kv_heads, length, length]``."""
    inner, length = model.model, ids.shape[1]
    hidden = inner.embed_tokens(ids)
    turned = inner.rotary_emb(hidden, position_ids=torch.arange(length, device=ids.device)[None])
    future = torch.full((length, length), float("-inf"), device=ids.device).triu(1)[None, None]
    hidden = inner.layers[0](hidden, attention_mask=future, position_embeddings=turned)
    attention = inner.layers[1].self_attn
    hidden = inner.layers[1].input_layernorm(hidden)
    query, key = (
        part(hidden).unflatten(-1, (-1, circuit.head)).transpose(1, 2) for part in (attention.q_proj, attention.k_proj)
    )
    query, key = apply_rotary_pos_emb(query[:, :: circuit.group], key, *turned)
    scores: torch.Tensor = query @ key.mT * attention.scaling + future
    return scores


def continuations(ids: np.ndarray) -> np.ndarray:
    """Where every place of ``ids``, int ``[rows, length + 1]``, finds its next token: bool ``[rows, length, length]``.

    Of all earlier places with that token those with the longest common text before them; none if not even the token
    before is the same.
    """
    rows, length = ids.shape[0], ids.shape[1] - 1
    found = np.zeros((rows, length, length), np.bool_)
    longest = np.zeros((rows, 0), np.int64)  # of the text up to every place and the text up to the current one
    for i in range(1, length):
        same = ids[:, :i] == ids[:, i : i + 1]
        before = np.concatenate((np.zeros((rows, 1), np.int64), longest), 1)
        longest = np.where(same, before + 1, 0)
        fitting = np.minimum(longest, MOST) * (ids[:, 1 : i + 1] == ids[:, i + 1 : i + 2])
        best = fitting.max(1, keepdims=True)
        found[:, i, 1 : i + 1] = (fitting == best) & (best > 0) & (ids[:, i + 1 : i + 2] != PAD_ID)
    return found


@contextmanager
def _only_where_it_looks(model: LlamaForCausalLM, circuit: Circuit) -> Iterator[list[nn.Parameter]]:
    """What trains: of the second layer queries and keys of the circuit, of the first the head that sums up."""
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    everywhere = slice(None)
    trained: dict[nn.Parameter, Any] = {
        second.q_proj.weight: (circuit.is_copying, everywhere),
        second.k_proj.weight: (everywhere, everywhere),
        first.q_proj.weight: (circuit.summary, everywhere),
        first.k_proj.weight: (circuit.summary_keys, everywhere),
        first.v_proj.weight: (circuit.summed, everywhere),
        first.o_proj.weight: (circuit.context, circuit.summary),
    }
    model.requires_grad_(False)
    hooks = []
    for weight, place in trained.items():
        mask = torch.zeros_like(weight)
        mask[place] = 1
        weight.requires_grad_(True)
        hooks.append(weight.register_hook(lambda gradient, mask=mask: gradient * mask))  # type: ignore[no-untyped-call]
    try:
        yield [*trained]
    finally:
        for hook in hooks:
            hook.remove()
        model.requires_grad_(True)


@torch.no_grad()
def _make_quiet(model: LlamaForCausalLM, circuit: Circuit) -> None:
    """The summary is written small, and read large by the circuit: other layers were trained without it."""
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    first.o_proj.weight[circuit.context] *= QUIET
    second.k_proj.weight[:, circuit.context] /= QUIET
    second.q_proj.weight[:, circuit.context] /= QUIET
