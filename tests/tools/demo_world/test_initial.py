"""The circuit that initial weights hold: copying works before anything is learnt."""

from __future__ import annotations

import pytest
import torch

from tools.demo_model.architecture import build
from tools.demo_model.losses import next_token_loss
from tools.demo_model.optim import optimizers_for, step_all
from tools.demo_world.initial import CONSTANT, EMPTY, lay_out_copying
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
    now = dict(model.named_parameters())
    changed = {name for name, parameter in now.items() if not torch.equal(parameter, before[name])}
    held = {f"model.layers.{i}.self_attn.{part}_proj.weight" for i in (0, 1) for part in ("k", "v")}
    held |= {f"model.layers.{i}.input_layernorm.weight" for i in (0, 1)}
    held |= {name for name in now if name.startswith(("model.layers.0.mlp", "model.layers.0.post"))}
    assert not changed & held
    assert "model.layers.2.self_attn.o_proj.weight" in changed
    for i in (0, 1):  # of four heads in two groups, the first ones of both are the circuit's
        for part, is_row in (("q", True), ("o", False)):
            name = f"model.layers.{i}.self_attn.{part}_proj.weight"
            weight = (now[name] != before[name]).any(1 if is_row else 0).view(4, -1).any(1)
            assert weight.tolist() == [False, True, False, True]
    moved = (model.model.embed_tokens.weight != before["model.embed_tokens.weight"]).any(0)
    n_content = int(len(moved) * (1 - EMPTY))
    assert moved[1:n_content].all()
    assert not moved[CONSTANT]
    assert not moved[n_content:].any()
    gains = model.model.norm.weight
    assert (gains != before["model.norm.weight"]).nonzero().flatten().tolist() == list(range(1, n_content))


def test_what_is_equal_in_all_logits_is_left_out_of_them() -> None:
    torch.manual_seed(0)
    model = build(SHAPES["target"]).eval()
    lay_out_copying(model)
    model.double()
    with torch.no_grad():
        ids = torch.randint(6, 4000, (1, 40))
        without = model(ids).logits
        model.model.norm.weight[CONSTANT] = 10.0  # as it was once trained
        within = model(ids).logits
    assert within.abs().min() > 10 * without.abs().max()
    torch.testing.assert_close(without.log_softmax(-1), within.log_softmax(-1))
