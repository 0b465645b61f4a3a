"""Initial weights with a copying circuit laid out: what small models otherwise take most of their training to find.

An induction head finds the place where the current token stood before and predicts the token that followed it there. It
takes two layers. In layer 0, heads attend one position back and write a projection of that token into dimensions that
embeddings leave empty. In layer 1, heads look for places whose predecessor has the current token's projection, and add
the embedding found there. Training leaves these two layers' attention as it is: gradients of the first steps, which are
about forms and not about copying, would take it apart.

Rotary positions turn a pair of dimensions by an angle that grows with the distance: the fast pairs tell one position
back from others, the slow ones hardly turn within a conversation and carry the comparison. Source of the circuit:
Olsson et al., "In-context Learning and Induction Heads" (2022).
"""

from __future__ import annotations

import torch
from transformers import LlamaForCausalLM

CONSTANT = 0  # the dimension that is equal in all embeddings: queries and keys that depend on positions alone
EMPTY = 0.25  # share of the dimensions, the last ones, that embeddings leave to the projection of the token before
FAST = 4  # pairs of dimensions that tell positions apart
SHARPNESS = 9.0  # of the look one position back: attention logit of the fastest pair
MATCH = 2.5  # size of queries and keys that compare tokens
SIZE = 0.3  # of embeddings: many times a step of the optimiser, or the circuit would drown in its first steps
WRITTEN = 2 * SIZE  # what layer 0 writes
COPIED = 5 * SIZE  # what layer 1 adds
CONFIDENCE = 0.06 / SIZE  # gain before the logits


@torch.no_grad()
def lay_out_copying(model: LlamaForCausalLM) -> None:
    """Change the weights of `model`, which has at least two layers, in place, and keep the circuit from training.

    What layers add to the residual stream is zero except for the circuit, so that nothing drowns it at first.
    """
    config = model.config
    width, empty = config.hidden_size, int(config.hidden_size * EMPTY)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    table = model.model.embed_tokens.weight
    content = slice(1, width - empty)
    table.mul_(SIZE / config.initializer_range)
    table[:, width - empty :] = 0
    table[:, CONSTANT] = SIZE * (width - empty) ** 0.5
    model.model.norm.weight.fill_(CONFIDENCE)
    basis = torch.linalg.qr(torch.randn(width - empty - 1, width - empty - 1))[0]  # rows: directions of content
    _look_back(model, basis, content)
    _match_and_copy(model, basis, content, config.head_dim // 2)
    _freeze(model, content)


def _freeze(model: LlamaForCausalLM, content: slice) -> None:
    for layer in model.model.layers[:2]:
        layer.self_attn.requires_grad_(False)
        layer.input_layernorm.requires_grad_(False)
    trained = torch.zeros(model.config.hidden_size)
    trained[content] = 1
    model.model.embed_tokens.weight.register_hook(lambda gradient: gradient * trained.to(gradient.device))


def _look_back(model: LlamaForCausalLM, basis: torch.Tensor, content: slice) -> None:
    """Layer 0: some directions of the token before, written into the empty dimensions."""
    config, attention = model.config, model.model.layers[0].self_attn
    head, group = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    angles = config.rope_parameters["rope_theta"] ** (-torch.arange(FAST) / (head // 2))
    constant = (config.hidden_size / 2) ** 0.5  # of the constant dimension after the norm
    size = (SHARPNESS * head**0.5) ** 0.5 / constant
    for kv in range((config.hidden_size - content.stop) // head):
        keys, values = (m.weight[kv * head : (kv + 1) * head] for m in (attention.k_proj, attention.v_proj))
        queries = attention.q_proj.weight[kv * group * head :][:head]
        keys.zero_()
        queries.zero_()
        keys[:FAST, CONSTANT] = size
        queries[:FAST, CONSTANT] = size * angles.cos()
        queries[head // 2 : head // 2 + FAST, CONSTANT] = -size * angles.sin()
        values.zero_()
        values[:, content] = basis[kv * head : (kv + 1) * head]
        empty = content.stop + kv * head
        out = attention.o_proj.weight[empty : empty + head, kv * group * head :]
        out[:, :head] = WRITTEN * torch.eye(head)


def _match_and_copy(model: LlamaForCausalLM, basis: torch.Tensor, content: slice, half: int) -> None:
    """Layer 1: one head a key head compares half a head's directions and copies another part of the content."""
    config, attention = model.config, model.model.layers[1].self_attn
    head, group = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    slow = torch.cat([torch.arange(half // 2, half), torch.arange(half + half // 2, 2 * half)])
    for kv in range(min(config.num_key_value_heads, (config.hidden_size - content.stop) // half)):
        keys, values = (m.weight[kv * head : (kv + 1) * head] for m in (attention.k_proj, attention.v_proj))
        queries = attention.q_proj.weight[kv * group * head :][:head]
        for weight in (keys, queries, values):
            weight.zero_()
        empty = content.stop + kv * half
        keys[slow, torch.arange(empty, empty + half)] = MATCH
        queries[slow, content] = MATCH * basis[kv * half : (kv + 1) * half]
        directions = basis[kv * head : (kv + 1) * head]
        values[:, content] = directions
        attention.o_proj.weight[content, kv * group * head :][:, :head] = COPIED * directions.T
