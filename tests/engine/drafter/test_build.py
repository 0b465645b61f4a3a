from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from engine.drafter.networks.base import TargetParts
from engine.drafter.networks.build import load_network, new_network
from engine.drafter.networks.eagle3 import Eagle3
from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError
from tests.support.tiny_drafters import DFLASH, EAGLE, LAYER, MASK, MEDUSA, PARALLEL, tiny_drafter

ALL = {**EAGLE, **PARALLEL, **DFLASH, "medusa": MEDUSA}
NO_TARGET = TargetParts(embed=lambda tokens: tokens, head=lambda states: states)
ATTENTION = {f"layers.0.{part}.weight" for part in ("q", "k", "v", "o", "gate", "up", "down", "ffn_norm")}
EAGLE3 = ATTENTION | {"layers.0.embed_norm.weight", "layers.0.hidden_norm.weight", "norm.weight", "fc.weight"}
NAMES = {
    "medusa": {f"heads.{k}.blocks.{j}.{kind}" for k in range(3) for j in range(2) for kind in ("weight", "bias")}
    | {f"heads.{k}.out.weight" for k in range(3)},
    "eagle": ATTENTION | {"fc.weight"},
    "eagle with biases": ATTENTION | {"fc.weight", "fc.bias"} | {f"layers.0.{part}.bias" for part in "qkvo"},
    "eagle 3": EAGLE3 | {"head.weight"},
    "eagle 3.1": EAGLE3 | {"head.weight", "embed.weight"} | {f"fc_norms.{i}.weight" for i in range(3)},
    "p-eagle": EAGLE3 | {"head.weight", "mask_state"},
    "parallelspec-eagle": ATTENTION | {"fc.weight", "mask_embeddings", "mask_state"},
    "parallelspec-medusa on tokens": ATTENTION | {"layers.0.input_norm.weight", "norm.weight", "mask_embeddings"},
    "dflash": {name.replace(".0.", f".{i}.") for i in range(2) for name in ATTENTION}
    | {f"layers.{i}.{part}.weight" for i in range(2) for part in ("input_norm", "q_norm", "k_norm")}
    | {"fc.weight", "hidden_norm.weight", "norm.weight"},
}
NAMES["dspark, gated"] = NAMES["dflash"] | {"embed.weight", "head.weight", "markov.w1", "markov.w2"}
NAMES["dspark, gated"] |= {f"{part}.{kind}" for part in ("markov.gate", "confidence") for kind in ("weight", "bias")}


@pytest.mark.parametrize("name", NAMES)
def test_parameters_have_the_normalised_names(name: str) -> None:
    assert set(new_network(ALL[name], NO_TARGET).state_dict()) == NAMES[name]


@pytest.mark.parametrize("name", ALL)
def test_what_is_saved_is_loaded(name: str) -> None:
    network = new_network(ALL[name], NO_TARGET)
    tensors = {key: weight.detach() for key, weight in network.named_parameters()}
    loaded = load_network(ALL[name], tensors, NO_TARGET)
    assert type(loaded) is type(network)
    assert all(
        weight is tensors[key] or weight.data_ptr() == tensors[key].data_ptr()
        for key, weight in loaded.named_parameters()
    )
    assert not any(weight.requires_grad for weight in loaded.parameters())


@pytest.mark.parametrize("name", ALL)
def test_every_weight_of_a_new_network_can_be_trained(name: str) -> None:
    assert all(
        weight.requires_grad and weight.isfinite().all() for weight in new_network(ALL[name], NO_TARGET).parameters()
    )


def test_a_wrong_checkpoint_is_named() -> None:
    spec = EAGLE["eagle 3"]
    tensors = dict(new_network(spec, NO_TARGET).state_dict())
    without = {name: weight for name, weight in tensors.items() if name != "fc.weight"}
    for wrong, said in (
        (without, "eagle lacks fc.weight"),
        ({**tensors, "embed.weight": torch.ones(1)}, "has embed.weight, which it does not know"),
        ({**tensors, "fc.weight": torch.ones(12, 24)}, "fc.weight of the drafter has shape (12, 24); .* (12, 36)"),
    ):
        with pytest.raises(ConfigError, match=said.replace("(", r"\(").replace(")", r"\)")):
            load_network(spec, wrong, NO_TARGET)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (replace(EAGLE["eagle"], draft_vocab_size=11), "draft_vocab_size is 11"),
        (replace(EAGLE["eagle"], layers=None), "layers is None"),
        (replace(EAGLE["eagle"], reads_states=False), "reads_states is False"),
        (replace(EAGLE["eagle"], target_hidden_size=10), "hidden_size of the drafter's layers is 12, the target's 10"),
        (replace(EAGLE["eagle"], taps=(1, 2)), "taps is (1, 2)"),
        (replace(EAGLE["eagle 3"], taps=()), "taps is empty"),
        (replace(PARALLEL["parallelspec-eagle"], n_drafts=None), "n_drafts is None"),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(spec: DrafterSpec, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        new_network(spec, NO_TARGET)


def test_masks_that_are_not_there_are_refused() -> None:
    parallel, eagle = tiny_drafter(PARALLEL["parallelspec-eagle"]).network, tiny_drafter(EAGLE["eagle 3"]).network
    assert isinstance(parallel, PairNetwork)
    assert isinstance(eagle, Eagle3)
    with pytest.raises(ConfigError, match="4 masks are wanted, but the drafter was trained with 3"):
        parallel.mask_rows(4)
    with pytest.raises(ConfigError, match="mask_token_id is None"):
        eagle.mask_rows(1)


def test_logits_are_float32_where_weights_are_not() -> None:
    spec = replace(EAGLE["eagle 3"], own_embedding=True, mask_token_id=MASK)
    network = new_network(spec, NO_TARGET).to(torch.bfloat16)
    assert isinstance(network, Eagle3)
    outputs = network(
        network.embed_tokens(torch.tensor([1, 2])),
        network.fuse(torch.ones(2, 36, dtype=torch.bfloat16)),
        torch.arange(2),
        lambda layer, query, key, value: query,
    )
    assert outputs.dtype == torch.bfloat16
    assert network.logits(outputs).dtype == torch.float32
    assert LAYER.n_layers == 1
