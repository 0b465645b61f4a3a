"""The copying circuit learns to look where the longest repetition goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import LlamaForCausalLM

from tools.demo_model.architecture import build
from tools.demo_model.tokenizer import PAD_ID
from tools.demo_world.initial import Circuit, lay_out_copying
from tools.demo_world.pointing import MOST, continuations, scores_of, train_pointing
from tools.demo_world.train import SHAPES


class Twice:
    """Rows of random tokens of few kinds, said twice. Implements ``Stream``."""

    def __init__(self, seed: int, kinds: int) -> None:
        self._random, self._kinds = torch.Generator().manual_seed(seed), kinds

    def batch(self, rows: int, length: int) -> torch.Tensor:
        once = torch.randint(6, 6 + self._kinds, (rows, length // 2 + 1), generator=self._random)
        return torch.cat((once, once), 1)[:, : length + 1]

    def state(self) -> dict[str, Any]:
        raise NotImplementedError

    def restore(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def longest_repetitions(ids: list[int]) -> list[set[int]]:
    """The slow oracle of ``continuations``: of every place but the last."""
    found = list[set[int]]()
    for i in range(len(ids) - 1):
        lengths = dict[int, int]()
        for place in range(1, i + 1):
            n = 0
            while n < min(place, MOST) and ids[place - 1 - n] == ids[i - n]:
                n += 1
            if n and ids[place] == ids[i + 1] != PAD_ID:
                lengths[place] = n
        found.append({place for place, n in lengths.items() if n == max(lengths.values())})
    return found


def test_places_to_look_at_are_those_of_the_oracle() -> None:
    random = np.random.default_rng(0)
    ids = random.integers(PAD_ID + 6, PAD_ID + 9, (6, 60))
    ids[:2, 20:40] = ids[:2, :20]
    ids[3, 50:] = PAD_ID
    ids[4] = ids[4, 0]  # longer repetitions than count
    wanted = [longest_repetitions(row) for row in ids.tolist()]
    assert any(len(places) > 1 for row in wanted for places in row)
    assert [[{*np.flatnonzero(row)} for row in rows] for rows in continuations(ids)] == wanted


def share_found(model: LlamaForCausalLM, ids: torch.Tensor) -> float:
    """In how many places a head of the circuit looks where it should, most of all."""
    with torch.no_grad():
        looked = scores_of(model, Circuit.of(model.config), ids[:, :-1]).argmax(-1)
    wanted = torch.from_numpy(continuations(ids.numpy()))
    hits = wanted[:, None].expand(-1, looked.shape[1], -1, -1).gather(-1, looked[..., None])[..., 0]
    asked = wanted.any(-1)
    asked[:, : ids.shape[1] // 2 + MOST] = False  # the second time
    return float(hits.any(1)[asked].float().mean())


def test_it_learns_to_tell_places_apart_that_two_tokens_do_not() -> None:
    torch.manual_seed(0)
    model = build(SHAPES["drafter"]).eval()
    lay_out_copying(model)
    model.set_attn_implementation("eager")
    ids = Twice(seed=1, kinds=5).batch(4, 120)  # every two tokens stand side by side in two or three places
    before, first = {name: weight.clone() for name, weight in model.state_dict().items()}, share_found(model, ids)
    train_pointing(model, Twice(seed=2, kinds=5), steps=50)
    assert share_found(model, ids) > first + 0.1

    now = model.state_dict()
    changed = {name for name in now if not torch.equal(now[name], before[name])}
    first_layer = {f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkvo"}
    assert changed == first_layer | {f"model.layers.1.self_attn.{part}_proj.weight" for part in "qk"}
    circuit = Circuit.of(model.config)
    for place in (circuit.before, circuit.further):  # what other layers read is what it was
        name = "model.layers.0.self_attn.o_proj.weight"
        assert torch.equal(now[name][place], before[name][place])
