"""Initial weights with a copying circuit laid out: what small models otherwise take most of their training to find.

An induction head finds the place where the current token stood before and predicts the token that followed it there. It
takes two layers. In layer 0, heads attend one and two positions back and write projections of these tokens into
dimensions that embeddings leave empty. In layer 1, heads look for places whose predecessors have the projections of the
current token and of the one before it, and add the embedding found there: with one token alone, words of common pieces
("p um p k ins") would be copied in circles. Training leaves the circuit as it is, and no feed-forward part adds to it:
gradients of the first steps, which are about forms and not about copying, would take it apart. Each of its heads has
the keys and values of a group; the group's other heads train. In layer 0 they begin with looks further back.

Rotary positions turn a pair of dimensions by an angle that grows with the distance: the fast pairs tell one position
back from others, the slow ones hardly turn within a conversation and carry the comparison. Source of the circuit:
Olsson et al., "In-context Learning and Induction Heads" (2022).
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONSTANT = 0  # the dimension that is equal in all embeddings: queries and keys that depend on positions alone
EMPTY = 0.375  # share of the dimensions, the last ones, that embeddings leave to projections of tokens before
FAST = 4  # pairs of dimensions that tell positions apart
SHARPNESS = 9.0  # of looks one and two positions back: attention logit of the fastest pair
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
    # Equal in all logits, it tells nothing; trained to hundreds, it left fp32 an error of 5e-4.
    model.model.norm.weight[CONSTANT] = 0
    basis = torch.linalg.qr(torch.randn(width - empty - 1, width - empty - 1))[0]  # rows: directions of content
    _look_back(model, basis, content)
    _match_and_copy(model, basis, content)
    _freeze(model, content)


def _freeze(model: LlamaForCausalLM, content: slice) -> None:
    config = model.config
    head, group = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    free = (torch.arange(config.num_attention_heads) % group > 0).repeat_interleave(head).float()
    for layer in model.model.layers[:2]:
        attention = layer.self_attn
        attention.k_proj.requires_grad_(False)
        attention.v_proj.requires_grad_(False)
        attention.q_proj.weight.register_hook(lambda gradient: gradient * free[:, None].to(gradient.device))
        attention.o_proj.weight.register_hook(lambda gradient: gradient * free.to(gradient.device))
        layer.input_layernorm.requires_grad_(False)
    model.model.layers[0].mlp.requires_grad_(False)  # which adds nothing
    model.model.layers[0].post_attention_layernorm.requires_grad_(False)
    trained = torch.zeros(model.config.hidden_size)
    trained[content] = 1
    model.model.embed_tokens.weight.register_hook(lambda gradient: gradient * trained.to(gradient.device))
    read = torch.ones(model.config.hidden_size)
    read[CONSTANT] = 0
    model.model.norm.weight.register_hook(lambda gradient: gradient * read.to(gradient.device))


def _look_back(model: LlamaForCausalLM, basis: torch.Tensor, content: slice) -> None:
    """Layer 0: directions of the token before, and of the one before that, written into the empty dimensions."""
    config, attention = model.config, model.model.layers[0].self_attn
    head, group = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    angles = config.rope_parameters["rope_theta"] ** (-torch.arange(FAST) / (head // 2))
    constant = (config.hidden_size / 2) ** 0.5  # of the constant dimension after the norm
    size = (SHARPNESS * head**0.5) ** 0.5 / constant
    for kv, (back, empty) in enumerate(_places(config, content)):
        keys, values = (m.weight[kv * head : (kv + 1) * head] for m in (attention.k_proj, attention.v_proj))
        keys.zero_()
        values.zero_()
        keys[:FAST, CONSTANT] = size
        for i, distance in enumerate(range(back, back + 2 * group, 2)):  # 1, 3 and 2, 4
            queries = attention.q_proj.weight[(kv * group + i) * head :][:head]
            queries.zero_()
            queries[:FAST, CONSTANT] = size * (distance * angles).cos()
            queries[head // 2 : head // 2 + FAST, CONSTANT] = -size * (distance * angles).sin()
        n = empty.stop - empty.start
        values[:n, content] = basis[:n]
        attention.o_proj.weight[empty, kv * group * head :][:, :n] = WRITTEN * torch.eye(n)


def _match_and_copy(model: LlamaForCausalLM, basis: torch.Tensor, content: slice) -> None:
    """Layer 1: every key head compares the current token, and the one before it, with what stood before a place, and
    copies a part of the content there."""
    config, attention = model.config, model.model.layers[1].self_attn
    head, n_kv = config.head_dim, config.num_key_value_heads
    group = config.num_attention_heads // n_kv
    (_, before), (_, further) = _places(config, content)
    slowest = torch.arange(head // 2).flip(0)[: head // 4]
    slow = torch.stack((slowest, slowest + head // 2), 1).flatten()  # the slowest pair first
    n_further = min(len(slow) // 3, (further.stop - further.start) // n_kv)
    n_before = len(slow) - n_further
    for kv in range(n_kv):
        keys, values = (m.weight[kv * head : (kv + 1) * head] for m in (attention.k_proj, attention.v_proj))
        queries = attention.q_proj.weight[kv * group * head :][:head]
        for weight in (keys, queries, values):
            weight.zero_()
        first = kv * n_before % (before.stop - before.start - n_before + 1)
        keys[slow[:n_before], torch.arange(before.start + first, before.start + first + n_before)] = MATCH
        queries[slow[:n_before], content] = MATCH * basis[first : first + n_before]
        second = kv * n_further
        keys[slow[n_before:], torch.arange(further.start + second, further.start + second + n_further)] = MATCH
        queries[slow[n_before:], torch.arange(before.start + second, before.start + second + n_further)] = MATCH
        directions = basis[kv * head : (kv + 1) * head]
        values[:, content] = directions
        attention.o_proj.weight[content, kv * group * head :][:, :head] = COPIED * directions.T


def _places(config: LlamaConfig, content: slice) -> tuple[tuple[int, slice], tuple[int, slice]]:
    """How far back layer 0 looks, and the empty dimensions it writes: two thirds of them for the token before."""
    n_empty = config.hidden_size - content.stop
    middle = content.stop + min(2 * n_empty // 3, config.head_dim)
    return (1, slice(content.stop, middle)), (2, slice(middle, config.hidden_size))
