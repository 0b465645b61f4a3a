"""Initial weights with a copying circuit laid out: what small models otherwise take most of their training to find.

An induction head finds the place where the current token stood before and predicts the token that followed it there. It
takes two layers. In layer 0, heads attend one and two positions back and write projections of these tokens into
dimensions that embeddings leave empty. In layer 1, heads look for places whose predecessors have the projections of the
current token and of the one before it, and add the embedding found there: with one token alone, words of common pieces
("p um p k ins") would be copied in circles. Another head of layer 0 sums up the tokens further back, for places that
two tokens do not tell apart; that it is compared too is learnt (`tools.demo_world.pointing`). Training leaves the
circuit as it is, and no feed-forward part adds to it: gradients of the first steps, which are about forms and not about
copying, would take it apart. Each of its heads has the keys and values of a group; the group's other heads train. In
layer 0 they begin with looks further back.

Rotary positions turn a pair of dimensions by an angle that grows with the distance: the fast pairs tell one position
back from others, the slow ones hardly turn within a conversation and carry the comparison. Source of the circuit:
Olsson et al., "In-context Learning and Induction Heads" (2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
CONTEXT_PAIRS = range(3, 7)  # of dimensions, slow enough for a look at several tokens at once
CONTEXT_BACK = 5.0  # tokens that the middle of that look is back
CONTEXT_WRITTEN = 2.4 * WRITTEN  # of a mean of tokens, which is smaller than a token


@dataclass(frozen=True)
class Circuit:
    """Where it lies in a model's matrices."""

    head: int  # dimensions of a head
    n_kv: int
    group: int  # heads with the same keys and values; the first one is the circuit's
    content: slice  # dimensions of embeddings
    before: slice  # of the token before; two thirds of the empty ones
    further: slice  # of the one before that
    context: slice  # of the summary

    @classmethod
    def of(cls, config: LlamaConfig) -> Circuit:
        """That of such a model."""
        width, head = config.hidden_size, config.head_dim
        empty = int(width * EMPTY)
        content = slice(1, width - empty)
        middle = content.stop + min(2 * empty // 3, head)
        last = (middle + width) // 2
        group = config.num_attention_heads // config.num_key_value_heads
        places = (content, slice(content.stop, middle), slice(middle, last), slice(last, width))
        return cls(head, config.num_key_value_heads, group, *places)

    @property
    def is_copying(self) -> torch.Tensor:
        """Rows of queries, and columns of outputs, of the second layer's heads that belong to it, bool ``[n]``."""
        return (torch.arange(self.n_kv * self.group) % self.group == 0).repeat_interleave(self.head)

    @property
    def summary(self) -> slice:
        """The same of the first layer's last head, which sums up."""
        end = self.n_kv * self.group * self.head
        return slice(end - self.head, end)

    @property
    def summary_keys(self) -> slice:
        """Rows of the first layer's keys that only the summary's queries meet."""
        return slice((self.n_kv - 1) * self.head + FAST, self.n_kv * self.head)

    @property
    def summed(self) -> slice:
        """Rows of the first layer's values that only the summary reads."""
        return slice(self.n_kv * self.head - self.head // 2, self.n_kv * self.head)


@torch.no_grad()
def lay_out_copying(model: LlamaForCausalLM) -> None:
    """Change the weights of `model`, which has at least two layers, in place.

    What layers add to the residual stream is zero except for the circuit, so that nothing drowns it at first.
    """
    config, circuit = model.config, Circuit.of(model.config)
    content = circuit.content
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    table = model.model.embed_tokens.weight
    table.mul_(SIZE / config.initializer_range)
    table[:, content.stop :] = 0
    table[:, CONSTANT] = SIZE * content.stop**0.5
    model.model.norm.weight.fill_(CONFIDENCE)
    # Equal in all logits, it tells nothing; trained to hundreds, it left fp32 an error of 5e-4.
    model.model.norm.weight[CONSTANT] = 0
    basis = torch.linalg.qr(torch.randn(content.stop - 1, content.stop - 1))[0]  # rows: directions of content
    _look_back(model, circuit, basis)
    _match_and_copy(model, circuit, basis)
    lay_out_context(model)


@torch.no_grad()
def lay_out_context(model: LlamaForCausalLM) -> None:
    """The head that sums up tokens further back, in place of what else is there, and no other heads beside the circuit
    in the second layer: they have its keys, which are about to change."""
    circuit, (first, second) = Circuit.of(model.config), (layer.self_attn for layer in model.model.layers[:2])
    second.o_proj.weight[:, ~circuit.is_copying] = 0
    first.o_proj.weight[circuit.context] = 0
    first.o_proj.weight[:, circuit.summary] = 0
    size = _position_size(model.config)
    keys = first.k_proj.weight[-circuit.head :]
    keys[CONTEXT_PAIRS.start : CONTEXT_PAIRS.stop, CONSTANT] = size
    _look(first.q_proj.weight[circuit.summary], model.config, CONTEXT_PAIRS, CONTEXT_BACK)
    n, values = circuit.context.stop - circuit.context.start, first.v_proj.weight[circuit.summed]
    values.zero_()
    values[:n] = second.v_proj.weight[-n:]  # directions of content
    columns = slice(circuit.summary.start + circuit.head // 2, circuit.summary.start + circuit.head // 2 + n)
    first.o_proj.weight[circuit.context, columns] = CONTEXT_WRITTEN * torch.eye(n)


def freeze_copying(model: LlamaForCausalLM) -> None:
    """Keep the circuit from training, and what it reads as it is."""
    circuit = Circuit.of(model.config)
    of_second = (~circuit.is_copying).float()
    of_first = of_second.clone()
    of_first[circuit.summary] = 0
    for layer, free in zip(model.model.layers, (of_first, of_second), strict=False):
        attention = layer.self_attn
        attention.k_proj.requires_grad_(False)
        attention.v_proj.requires_grad_(False)
        _train_only(attention.q_proj.weight, free[:, None])
        _train_only(attention.o_proj.weight, free)
        layer.input_layernorm.requires_grad_(False)
    model.model.layers[0].mlp.requires_grad_(False)  # which adds nothing
    model.model.layers[0].post_attention_layernorm.requires_grad_(False)
    trained = torch.zeros(model.config.hidden_size)
    trained[circuit.content] = 1
    _train_only(model.model.embed_tokens.weight, trained)
    read = torch.ones(model.config.hidden_size)
    read[CONSTANT] = 0
    _train_only(model.model.norm.weight, read)


def _train_only(weight: torch.Tensor, mask: torch.Tensor) -> None:
    weight.register_hook(lambda gradient: gradient * mask.to(gradient.device))  # type: ignore[no-untyped-call]


def _position_size(config: LlamaConfig) -> float:
    """Of queries and keys of the constant dimension that tell positions apart."""
    constant = (config.hidden_size / 2) ** 0.5  # of it after the norm
    return float((SHARPNESS * config.head_dim**0.5) ** 0.5 / constant)


def _look(queries: torch.Tensor, config: LlamaConfig, pairs: range, distance: float) -> None:
    """Queries ``[head_dim, width]`` for keys that lie `distance` tokens back; slower pairs look at more of them."""
    queries.zero_()
    half = config.head_dim // 2
    for pair in pairs:
        angle = distance * config.rope_parameters["rope_theta"] ** (-pair / half)
        queries[pair, CONSTANT] = _position_size(config) * math.cos(angle)
        queries[half + pair, CONSTANT] = -_position_size(config) * math.sin(angle)


def _look_back(model: LlamaForCausalLM, circuit: Circuit, basis: torch.Tensor) -> None:
    """Layer 0: directions of the token before, and of the one before that, written into the empty dimensions."""
    config, attention, head, group = model.config, model.model.layers[0].self_attn, circuit.head, circuit.group
    for kv, (back, empty) in enumerate(((1, circuit.before), (2, circuit.further))):
        keys, values = (m.weight[kv * head : (kv + 1) * head] for m in (attention.k_proj, attention.v_proj))
        keys.zero_()
        values.zero_()
        keys[:FAST, CONSTANT] = _position_size(config)
        for i, distance in enumerate(range(back, back + 2 * group, 2)):  # 1, 3 and 2, 4
            _look(attention.q_proj.weight[(kv * group + i) * head :][:head], config, range(FAST), distance)
        n = empty.stop - empty.start
        values[:n, circuit.content] = basis[:n]
        attention.o_proj.weight[empty, kv * group * head :][:, :n] = WRITTEN * torch.eye(n)


def _match_and_copy(model: LlamaForCausalLM, circuit: Circuit, basis: torch.Tensor) -> None:
    """Layer 1: every key head compares the current token, and the one before it, with what stood before a place, and
    copies a part of the content there."""
    attention, head, content = model.model.layers[1].self_attn, circuit.head, circuit.content
    before, further = circuit.before, circuit.further
    slowest = torch.arange(head // 2).flip(0)[: head // 4]
    slow = torch.stack((slowest, slowest + head // 2), 1).flatten()  # the slowest pair first
    n_further = min(len(slow) // 3, (further.stop - further.start) // circuit.n_kv)
    n_before = len(slow) - n_further
    for kv in range(circuit.n_kv):
        keys, values = (m.weight[kv * head : (kv + 1) * head] for m in (attention.k_proj, attention.v_proj))
        queries = attention.q_proj.weight[kv * circuit.group * head :][:head]
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
        attention.o_proj.weight[content, kv * circuit.group * head :][:, :head] = COPIED * directions.T
