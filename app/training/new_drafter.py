"""New drafters: the published shape of the method in the target's sizes, changed by flags, and the first weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from app.training.options import MASKED, ArchitectureOptions, check_options
from engine.drafter.checkpoint.ids import default_taps, dflash_taps
from engine.drafter.checkpoint.layers import LayerConfig, decode, read_layer_shape
from engine.drafter.networks.base import TargetParts
from engine.drafter.networks.build import AnyNetwork, new_network
from engine.drafter.networks.medusa import Medusa
from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.spec import DrafterSpec, Method
from engine.errors import ConfigError
from engine.model.loader import load_config
from engine.model.spec import ModelSpec
from engine.target_model.whole_texts import WholeTexts

__all__ = ["ArchitectureOptions", "check_options"]  # and everything below

DRAFTS = {"medusa": 5, "parallelspec-medusa": 5, "parallelspec-eagle": 5, "p-eagle": 7, "dflash": 15}
LAYERS = {"p-eagle": 4, "dflash": 5}  # others: 1
DSPARK_DRAFTS = 7


def new_spec(
    method: Method, asked: ArchitectureOptions, path: Path, target: ModelSpec, unused_token: int | None
) -> DrafterSpec:
    """The shape of the drafter for a target; raises ConfigError if the target lacks such layers or tokens.

    ``asked`` is as ``check_options`` accepts it. ``unused_token`` is for masks: no text has it.
    """
    if asked.draft_vocab is not None and asked.draft_vocab > target.vocab_size:
        raise ConfigError(f"--draft-vocab is {asked.draft_vocab}; the target has {target.vocab_size} tokens")
    is_eagle3 = method == "eagle" and asked.generation != 1
    n_drafts = asked.drafts or (DSPARK_DRAFTS if asked.sample_from_anchor else DRAFTS.get(method))
    n_layers, layers = asked.layers or LAYERS.get(method, 1), None
    if method != "medusa":  # layers shaped as the target's, with SiLU and without windows
        config = decode(path, load_config(path).to_dict(), LayerConfig)
        layers = read_layer_shape(path, msgspec.structs.replace(config, hidden_act=None, layer_types=None), {})
        layers = replace(layers, n_layers=n_layers, qk_norm=layers.qk_norm or method == "dflash")
    is_masked = method in MASKED
    mask_token = unused_token if asked.mask_token is None else asked.mask_token
    if is_masked and (mask_token is None or mask_token >= target.vocab_size):
        most = f"an id below {target.vocab_size} that no text has, such as padding"
        raise ConfigError(f"--mask-token is {mask_token}; it must be {most}")
    learns_mask = method.startswith("parallelspec") and asked.mask_state != "zero" and not asked.no_states
    return DrafterSpec(
        method=method,
        generation=3 if is_eagle3 else 1,
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=asked.draft_vocab or target.vocab_size,
        taps=_taps(method, asked, target, n_layers) if is_eagle3 or is_masked else (),
        layers=layers,
        n_drafts=n_drafts,
        n_heads=n_drafts or 0 if method == "medusa" else 0,
        n_head_layers=n_layers if method == "medusa" else 0,
        own_head=asked.own_head or (method == "medusa" and asked.draft_vocab is None),
        reads_states=not asked.no_states,
        mask_token_id=mask_token if is_masked else None,
        has_mask_state=method == "p-eagle" or learns_mask,
        causal_block=asked.causal_block,
        sample_from_anchor=asked.sample_from_anchor,
        markov_rank=asked.markov_rank or 0,
        markov_head=asked.markov_head or "vanilla",
        has_confidence=asked.confidence,
        confidence_with_markov=asked.confidence and asked.markov_rank is not None,
    )


def _taps(method: Method, asked: ArchitectureOptions, target: ModelSpec, n_layers: int) -> tuple[int, ...]:
    """The layers to read."""
    if asked.taps is None:
        return usual_taps(target, dflash_taps(target.n_layers, n_layers) if method == "dflash" else None)
    if not all(-1 <= tap < target.n_layers for tap in asked.taps) or len(set(asked.taps)) < len(asked.taps):
        given = ",".join(map(str, asked.taps))
        raise ConfigError(f"--taps is {given}; layers of this target are 0 to {target.n_layers - 1}, each once")
    return asked.taps


def usual_taps(target: ModelSpec, taps: Sequence[int] | None = None) -> tuple[int, ...]:
    """Published layers to read (None: those of EAGLE 3); in a shallow target they may coincide or not exist."""
    found = default_taps(target.n_layers) if taps is None else taps
    return tuple(sorted({min(max(0, tap), target.n_layers - 1) for tap in found}))


def find_unused_token(tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> int | None:
    """A token that no text has: mask, an id that the tokenizer does not use, padding, unknown or start."""
    unused = len(tokenizer) if len(tokenizer) < vocab_size else None
    ids = (tokenizer.mask_token_id, unused, tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id)
    return next((one for one in ids if one is not None and one != tokenizer.eos_token_id), None)  # some pad with EOS


def new_drafter(spec: DrafterSpec, model: WholeTexts, draft_ids: Tensor | None, seed: int) -> AnyNetwork:
    """A float32 network on the target's last device.

    Its own head starts as the target's rows; Medusa's heads start as the target's with identity blocks, as their
    authors' do (arXiv 2401.10774). Masks are as large as embeddings. If a matrix reads an embedding and a state without
    a norm before it, it starts with both on one scale: final states are tens of times larger. ``draft_ids`` is int64
    ``[draft_vocab_size]``, the target's id of each token of the drafter; None: they are the same.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network, last = new_network(spec, target_parts(model, draft_ids)), model.shards[-1]
        every = torch.arange(spec.vocab_size)
        if isinstance(network, Medusa):
            for weight in (weight for head in network.heads for weight in head.blocks.parameters()):  # type: ignore[union-attr]
                nn.init.zeros_(weight)
        if spec.own_head:
            heads = [head.out for head in network.heads] if isinstance(network, Medusa) else [network.head]
            for head in heads:
                head.weight.copy_(last.head_rows(every if draft_ids is None else draft_ids))  # type: ignore[union-attr, operator]
        if isinstance(network, PairNetwork) and not spec.taps:
            embedded = _root_mean_square(model.embed(every))
            if spec.reads_states:
                states = last.norm(torch.randn(64, spec.target_hidden_size).to(last.device, last.dtype))
                network.fc.weight[:, : network.shape.hidden_size].mul_(_root_mean_square(states) / embedded)
            if spec.method != "eagle":
                network.mask_embeddings.mul_(embedded)
        return network.to(last.device)


def target_parts(model: WholeTexts, draft_ids: Tensor | None = None) -> TargetParts:
    """The target's embedding, and its head over ``draft_ids`` (None: all), as a float32 drafter uses them."""
    last = model.shards[-1]
    scores = last.head if draft_ids is None else last.head_over(draft_ids)

    def embed(tokens: Tensor) -> Tensor:
        return model.embed(tokens).to(last.device).float()

    def head(normed: Tensor) -> Tensor:
        return scores(normed.to(last.dtype).contiguous())  # rows with gaps would take one product per text

    return TargetParts(embed, head)


def _root_mean_square(values: Tensor) -> float:
    return float(values.float().square().mean().sqrt())
