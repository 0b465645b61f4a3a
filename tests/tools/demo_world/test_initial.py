"""The circuit that initial weights hold: copying works before anything is learnt."""

from __future__ import annotations

import pytest
import torch

from tools.demo_model.architecture import build
from tools.demo_model.losses import next_token_loss
from tools.demo_model.optim import optimizers_for, step_all
from tools.demo_world.initial import EMPTY, lay_out_copying
from tools.demo_world.train import SHAPES


def share_copied(role: str, laid_out: bool, n: int, kinds: int = 4000) -> float:
    """Of `n` random tokens, of so many kinds, that are written twice, how many are foretold by the first writing."""
    torch.manual_seed(0)
    model = build(SHAPES[role]).eval()
    if laid_out:
        lay_out_copying(model)
    once = torch.randint(6, 6 + kinds, (4, n))
    with torch.no_grad():
        logits = model(torch.cat([once, once], 1)).logits
    return (logits[:, n:-1].argmax(-1) == once[:, 1:]).float().mean().item()


@pytest.mark.parametrize("role", sorted(SHAPES))
@pytest.mark.parametrize("n", [10, 40])
def test_untrained_models_copy(role: str, n: int) -> None:
    assert share_copied(role, laid_out=True, n=n) > 0.8
    assert share_copied(role, laid_out=False, n=n) < 0.1


@pytest.mark.parametrize("role", sorted(SHAPES))
def test_the_token_before_tells_places_of_one_token_apart(role: str) -> None:
    assert share_copied(role, laid_out=True, n=30, kinds=15) > 0.7  # with one token alone, a third


def test_only_the_circuit_adds_to_the_residual_stream() -> None:
    model = build(SHAPES["target"])
    lay_out_copying(model)
    for layer in model.model.layers:
        assert not layer.mlp.down_proj.weight.any()
    assert [layer.self_attn.o_proj.weight.any().item() for layer in model.model.layers] == [True] * 2 + [False] * 4


def test_training_leaves_the_circuit_as_it_is() -> None:
    torch.manual_seed(0)
    model = build(SHAPES["target"])
    lay_out_copying(model)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizers = optimizers_for(model)
    for _ in range(2):
        next_token_loss(model)(torch.randint(6, 4000, (2, 33))).backward()
        step_all(optimizers, 1.0)
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    circuit = {f"model.layers.{i}.{part}" for i in (0, 1) for part in ("self_attn", "input_layernorm")}
    circuit |= {f"model.layers.0.{part}" for part in ("mlp", "post_attention_layernorm")}
    assert not {name for name in changed if name.rsplit(".", 2)[0] in circuit or name.rsplit(".", 1)[0] in circuit}
    assert "model.layers.2.self_attn.o_proj.weight" in changed
    moved = (model.model.embed_tokens.weight != before["model.embed_tokens.weight"]).any(0)
    n_content = int(len(moved) * (1 - EMPTY))
    assert moved[1:n_content].all()
    assert not moved[0]
    assert not moved[n_content:].any()
