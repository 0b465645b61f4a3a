"""Training sees neither the fillers nor the wordings that evaluation asks with."""

from __future__ import annotations

import random
import re
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


NO_WORDS = re.compile(r"[^\w{}]+|\bplease\b|\bcould you\b")
POOLS = [(n, v) for m in modules(fillers) for n, v in vars(m).items() if isinstance(v, Pool)]
WORDINGS = [(n, v) for m in modules(tasks) for n, v in vars(m).items() if isinstance(v, Wordings)]


def expansions(template: str) -> set[str]:
    """All that `[a|b]` can become, but for case, stops and courtesies."""
    found = OPTIONS.search(template)
    if found is None:
        return {" ".join(NO_WORDS.sub(" ", template.lower()).split())}
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


@pytest.mark.parametrize(("name", "pool"), [(n, p) for n, p in POOLS if p.words])
def test_a_draw_of_few_has_about_as_many_fillers_as_are_held_out(name: str, pool: Pool) -> None:
    whole, held_out = pool.sides
    parts = [pool.side(False, part) for part in range(len(whole) // len(held_out))]
    assert sorted(word for part in parts for word in part) == sorted(whole)
    assert all(len(held_out) <= len(part) <= 2 * len(held_out) for part in parts)
    few = Draw(random.Random(2), "train", few=True)
    drawn = [few.pick(pool) for _ in range(100)]
    assert 2 <= len({word for word in drawn if word in whole}) <= 2 * len(held_out)
