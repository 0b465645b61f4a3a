"""The drafts that the runtime makes from cached rows have the scores of an oracle that recomputes the whole text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path as File

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.drafter.checkpoint.tensors import DrafterCheckpoint, describe_tensors
from engine.drafter.networks.base import LayeredNetwork, TargetParts
from engine.drafter.networks.build import load_network, new_network
from engine.drafter.serving.rows import CommittedTokens
from engine.drafter.serving.runtime import DrafterPlacement, DraftRuntime
from engine.drafter.settings import DrafterSettings
from engine.drafter.spec import DrafterSpec
from engine.drafter.trees.draft_tree import DraftRequest
from engine.errors import ConfigError
from engine.kv.arena import BlockTable
from engine.protocol import Branch
from engine.sampling.params import SamplingParams
from tests.engine.drafter.draft_oracles import Path, paths
from tests.support.naive_drafter import NaiveDrafter
from tests.support.tiny_drafters import (
    CUT,
    DFLASH,
    EAGLE,
    LAYER,
    MEDUSA,
    PARALLEL,
    TinyDrafter,
    tiny_drafter,
    tiny_states,
)

ALL = {**EAGLE, **PARALLEL, **DFLASH, **CUT, "medusa": MEDUSA}
TEXTS = [[3, 1, 4, 1, 5, 9, 2, 6], [3, 1, 4, 2, 8]]
ROOM = 40  # positions of a text


def runtime_of(drafter: TinyDrafter) -> DraftRuntime:
    tensors = {name: torch.from_numpy(weight) for name, weight in drafter.weights.items()}
    embedding, head = torch.from_numpy(drafter.embedding), torch.from_numpy(drafter.rows)
    target = TargetParts(embed=lambda tokens: embedding[tokens], head=lambda states: states @ head.T)
    ids = None if drafter.spec.draft_vocab_size == drafter.spec.vocab_size else draft_ids(drafter.spec)
    checkpoint = DrafterCheckpoint(drafter.spec, tensors, ids, "tiny")
    place = DrafterPlacement(len(TEXTS) * ROOM // 4, 4, torch.float64, torch.device("cpu"))
    return DraftRuntime(checkpoint, target, place, DrafterSettings("", depth=3, beam=2))


def draft_ids(spec: DrafterSpec) -> Tensor:
    return torch.arange(spec.draft_vocab_size) * (spec.vocab_size - 1) // (spec.draft_vocab_size - 1)


def oracle_row(drafter: TinyDrafter, text: list[int], states: np.ndarray, path: Path) -> np.ndarray:
    """Scores of the token after ``path``."""
    oracle, chain = NaiveDrafter(drafter), [(depth - 1, token) for depth, token in enumerate(path)]
    if drafter.spec.method == "medusa":
        return oracle.medusa(states)[len(path)]
    if drafter.spec.method == "eagle":
        return oracle.eagle(text, states, chain)[-1]
    if drafter.spec.method == "dflash":
        return oracle.dflash(text, states, chain)[0][-1]
    return oracle.parallel(text, states)[len(path)]


def confidence(drafter: TinyDrafter, text: list[int], states: np.ndarray) -> np.ndarray:
    """Chance of acceptance by depth, after the best tokens without the Markov head."""
    if not drafter.spec.has_confidence:
        return np.ones(10)
    plain, n_drafts = NaiveDrafter(drafter), drafter.spec.n_drafts or 0
    plain.spec = replace(drafter.spec, markov_rank=0, has_confidence=False)
    rows = plain.dflash(text, states, [(depth - 1, 0) for depth in range(n_drafts - 1)])[0]
    best = draft_ids(drafter.spec).numpy()[rows.argmax(-1)]
    chain = [(depth - 1, int(token)) for depth, token in enumerate(best[:-1])]
    chances = NaiveDrafter(drafter).dflash(text, states, chain)[1]
    assert chances is not None
    return chances


def difference(drafter: TinyDrafter, text: list[int], states: np.ndarray, branch: Branch) -> float:
    """The largest difference of a drafted token's score from the oracle's."""
    trust, worst = confidence(drafter, text, states), 0.0
    ids = draft_ids(drafter.spec).tolist()
    for path, score in zip(paths(branch), branch.scores or (), strict=True):
        row = oracle_row(drafter, text, states, path[:-1])
        chances = np.exp(row - row.max())
        expected = chances[ids.index(path[-1])] / chances.sum() * trust[len(path) - 1]
        worst = max(worst, abs(float(expected) - score))
    return worst


def largest_difference(drafter: TinyDrafter, states: Tensor, read: Tensor) -> float:
    """Over two steps of two texts, where the drafter reads ``read`` and the oracle ``states``, [text, position, ..]."""
    runtime, network = runtime_of(drafter), drafter.network
    fused = network.fuse(read) if isinstance(network, LayeredNetwork) else read
    texts, n_read, worst = list(TEXTS), [0, 0], 0.0

    def committed(seq: int, tokens: list[int], drawn: int | None) -> CommittedTokens:
        first, n_read[seq] = n_read[seq], n_read[seq] + len(tokens)
        sequence, known = runtime.of(seq), fused[seq, first : n_read[seq]]
        assert sequence is not None
        ask = None if drawn is None else DraftRequest(SamplingParams(), None, drawn, n_read[seq] + 1, 4, 6)
        return CommittedTokens(sequence, first, known, tokens, drawn, ask)

    for seq in range(2):
        table = BlockTable(4)
        table.extend(range(seq * ROOM // 4, (seq + 1) * ROOM // 4))
        runtime.start(seq, table, 0)
        runtime.wait([committed(seq, TEXTS[seq][:2], None)])  # a chunk of the prompt
    for _ in range(3):
        branches = runtime.draft([committed(s, text[n_read[s] : -1], text[-1]) for s, text in enumerate(texts)])
        for seq, branch in enumerate(branches):
            assert branch is not None
            known = states[seq, : n_read[seq]].numpy()
            worst = max(worst, difference(drafter, texts[seq], known, branch))
            texts[seq] = [*texts[seq], *paths(branch)[-1], 7]  # a drafted path and a bonus token are committed
    return worst


def two_states(drafter: TinyDrafter) -> Tensor:
    return tiny_states(drafter.spec, 2 * ROOM).unflatten(0, (2, ROOM))


@pytest.mark.parametrize("name", ALL)
def test_drafted_scores_are_those_of_the_whole_text(name: str) -> None:
    drafter = tiny_drafter(ALL[name], draft_ids(ALL[name]))
    states = two_states(drafter)
    assert largest_difference(drafter, states, states) < 1e-6


@pytest.mark.parametrize("name", ["eagle", "eagle 3", "parallelspec-eagle", "p-eagle", "dflash", "medusa"])
def test_states_of_other_positions_or_taps_are_detected(name: str) -> None:
    drafter = tiny_drafter(ALL[name])
    states = two_states(drafter)
    assert largest_difference(drafter, states, states.roll(1, 1)) > 1e-2
    if drafter.spec.taps:
        assert largest_difference(drafter, states, states.roll(drafter.spec.target_hidden_size, 2)) > 1e-2


SCORES: dict[str, list[list[float]]] = json.loads((File(__file__).parent / "reference_scores.json").read_text())
CHAIN = [(-1, 5), (0, 3)]
WHOLE = replace(LAYER, n_heads=3, n_kv_heads=1, head_dim=4)  # heads that together are as wide as the state

CASES: dict[str, DrafterSpec] = {
    # FasterDecoding/Medusa, medusa_model.py
    "medusa": MEDUSA,
    # SafeAILab/EAGLE, cnets1.py and cnets.py
    "eagle": replace(EAGLE["eagle"], layers=WHOLE),
    "eagle of two layers": replace(EAGLE["eagle"], layers=replace(WHOLE, n_layers=2), fc_bias=True),
    "eagle 3": replace(EAGLE["eagle 3"], layers=WHOLE),
    # vllm-project/speculators, models/eagle3 and models/peagle
    "eagle 3.1": EAGLE["eagle 3.1"],
    "eagle 3, norms first": EAGLE["eagle 3, norms first"],
    "p-eagle": PARALLEL["p-eagle"],
    "p-eagle with norms": PARALLEL["p-eagle with norms"],
    # z-lab/dflash, model.py, and for the heads vllm-project/speculators, models/dspark
    "dflash": DFLASH["dflash"],
    "dspark": DFLASH["dspark"],
    "dspark, gated": DFLASH["dspark, gated"],
    "dspark, rnn": DFLASH["dspark, rnn"],
}


@pytest.mark.parametrize("name", CASES)
def test_the_oracle_has_the_scores_of_the_published_code(name: str) -> None:
    """Run once in float64; that code keeps cos, sin and norms in float32: scores of size ten agree to 4 decimals."""
    spec = CASES[name]
    oracle, states, chances = NaiveDrafter(tiny_drafter(spec)), tiny_states(spec, len(TEXTS[0]) - 1).numpy(), None
    if spec.method == "medusa":
        scores = oracle.medusa(states)
    elif spec.method == "dflash":
        scores, chances = oracle.dflash(TEXTS[0], states, CHAIN)
    elif spec.method == "p-eagle":
        scores = oracle.parallel(TEXTS[0], states)
    else:
        scores = oracle.eagle(TEXTS[0], states, CHAIN)
    np.testing.assert_allclose(scores, SCORES[name], rtol=0, atol=1e-4)
    if chances is not None:
        np.testing.assert_allclose(chances, SCORES[f"{name}: chances"][0], rtol=0, atol=1e-4)


NO_TARGET = TargetParts(embed=lambda tokens: tokens, head=lambda states: states)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc.weight": None}, r"do not match its spec \(eagle\)(?s:.*)Missing key.* \"fc.weight\""),
        ({"embed.weight": torch.ones(1)}, r"(?s)Unexpected key.* \"embed.weight\""),
        ({"fc.weight": torch.ones(12, 24)}, r"(?s)mismatch for fc.weight: .*\(\[12, 24\]\).*\(\[12, 36\]\)"),
    ],
)
def test_a_checkpoint_with_other_tensors_is_refused(change: dict[str, torch.Tensor | None], message: str) -> None:
    spec = EAGLE["eagle 3"]
    tensors = {**new_network(spec, NO_TARGET).state_dict(), **change}
    with pytest.raises(ConfigError, match=message):
        load_network(spec, {name: tensor for name, tensor in tensors.items() if tensor is not None}, NO_TARGET)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(EAGLE["eagle"], draft_vocab_size=24), "draft_vocab_size is 24; the target has 23 tokens"),
        (replace(EAGLE["eagle"], layers=None), "layers is None"),
        (replace(EAGLE["eagle"], reads_states=False), "reads_states is False"),
        (replace(EAGLE["eagle"], target_hidden_size=10), "hidden_size of the drafter's layers is 12, the target's 10"),
        (replace(EAGLE["eagle"], taps=(1, 2)), "taps is (1, 2)"),
        (replace(EAGLE["eagle 3"], taps=()), "taps is empty"),
        (replace(PARALLEL["parallelspec-eagle"], n_drafts=None), "n_drafts is None"),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(spec: DrafterSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        new_network(spec, NO_TARGET)


@pytest.mark.parametrize("name", ALL)
def test_the_table_of_tensors_has_the_names_and_shapes_of_the_network(name: str) -> None:
    network = new_network(ALL[name], NO_TARGET)
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    assert {name: one.shape for name, one in describe_tensors(ALL[name]).items()} == shapes
