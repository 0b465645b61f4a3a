"""Training sees neither the fillers nor the wordings that evaluation asks with."""

from __future__ import annotations

import random
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import pytest

from tools.demo_world import fillers, tasks
from tools.demo_world.draw import OPTIONS, Draw, Pool, Wordings
from tools.demo_world.fillers.people import NAMES
from tools.demo_world.tasks.working import operands


def modules(package: ModuleType) -> list[ModuleType]:
    """All modules of a room."""
    return [import_module(f"{package.__name__}.{info.name}") for info in iter_modules(package.__path__)]


POOLS = [(n, v) for m in modules(fillers) for n, v in vars(m).items() if isinstance(v, Pool)]
WORDINGS = [(n, v) for m in modules(tasks) for n, v in vars(m).items() if isinstance(v, Wordings)]


def expansions(template: str) -> set[str]:
    """All that `[a|b]` can become."""
    found = OPTIONS.search(template)
    if found is None:
        return {template.lower()}
    whole, options = found.span(), found.group(1).split("|")
    return {t for o in options for t in expansions(template[: whole[0]] + o + template[whole[1] :])}


@pytest.mark.parametrize(("name", "pool"), dict(POOLS).items())
def test_fillers_of_training_and_evaluation_differ(name: str, pool: Pool) -> None:
    rng = random.Random(0)
    seen, unseen = ({pool.draw(rng, side) for _ in range(400)} for side in (False, True))
    assert len(seen) > 2
    assert unseen
    assert not seen & unseen


@pytest.mark.parametrize(("name", "wordings"), WORDINGS)
def test_wordings_of_training_and_evaluation_differ(name: str, wordings: Wordings) -> None:
    seen = {text for template in wordings.seen for text in expansions(template)}
    unseen = {text for template in wordings.unseen for text in expansions(template)}
    assert seen
    assert unseen
    assert not seen & unseen


@pytest.mark.parametrize("operator", "+-")
def test_pairs_of_numbers_differ(operator: str) -> None:
    trained, asked = (
        {operands(Draw(random.Random(i), split), operator) for i in range(600)} for split in ("train", "fillers")
    )
    assert not trained & asked


def test_a_draw_keeps_to_its_side() -> None:
    train, held_out = Draw(random.Random(1), "train"), Draw(random.Random(1), "fillers")
    assert not set(train.some(NAMES, 30)) & set(held_out.some(NAMES, 10))
