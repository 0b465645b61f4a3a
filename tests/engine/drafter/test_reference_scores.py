"""Scores as the code computes them that the formats come from: run once in float64 on these drafters' weights.

That code keeps cos and sin, and norms, in float32: scores of size ten agree to four digits behind the point.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.drafter.networks.medusa import Medusa
from engine.drafter.spec import DrafterSpec
from tests.support.incremental_drafter import IncrementalDFlash, IncrementalDrafter, Sequence
from tests.support.tiny_drafters import DFLASH, EAGLE, LAYER, MEDUSA, PARALLEL, tiny_drafter, tiny_states

SCORES: dict[str, list[list[float]]] = json.loads((Path(__file__).parent / "reference_scores.json").read_text())
TEXT = [3, 1, 4, 1, 5, 9, 2, 6]
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
    # z-lab/dflash, model.py, and for the heads behind it vllm-project/speculators, models/dspark
    "dflash": DFLASH["dflash"],
    "dspark": DFLASH["dspark"],
    "dspark, gated": DFLASH["dspark, gated"],
    "dspark, rnn": DFLASH["dspark, rnn"],
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_scores(name: str) -> None:
    drafter = tiny_drafter(CASES[name])
    sequence, chances = Sequence(TEXT, tiny_states(drafter.spec, len(TEXT))), None
    if isinstance(drafter.network, Medusa):
        found = drafter.network(sequence.states[sequence.n_states - 1])
    elif drafter.spec.method == "dflash":
        found, chances = IncrementalDFlash(drafter).draft([sequence], [CHAIN])[0]
    elif drafter.spec.method == "p-eagle":
        found = IncrementalDrafter(drafter).draft_parallel([sequence])[0]
    else:
        found = IncrementalDrafter(drafter).draft([sequence], [CHAIN])[0]
    np.testing.assert_allclose(found.numpy(), SCORES[name], rtol=0, atol=1e-4)
    if chances is not None:
        np.testing.assert_allclose(chances.numpy(), SCORES[f"{name}: chances"][0], rtol=0, atol=1e-4)


def test_every_figure_is_used() -> None:
    assert set(CASES) == {name.partition(":")[0] for name in SCORES}
