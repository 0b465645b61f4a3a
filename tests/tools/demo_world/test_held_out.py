"""Training sees neither the fillers nor the wordings that evaluation asks with."""

from __future__ import annotations

import random
import re
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from tools.demo_world import fillers, tasks
from tools.demo_world.draw import OPTIONS, Draw, Pool, Wordings
from tools.demo_world.tasks.working import operands

NO_WORDS = re.compile(r"[^\w{}]+|\bplease\b|\bcould you\b")


def members(package: ModuleType, kind: type) -> list[object]:
    """Return all values of a type in the modules of a package."""
    modules = [import_module(f"{package.__name__}.{info.name}") for info in iter_modules(package.__path__)]
    return [value for module in modules for value in vars(module).values() if isinstance(value, kind)]


def expansions(template: str) -> set[str]:
    """Return all texts that ``[a|b]`` can become, without case, punctuation and courtesies."""
    found = OPTIONS.search(template)
    if found is None:
        return {" ".join(NO_WORDS.sub(" ", template.lower()).split())}
    start, end = found.span()
    return {t for o in found.group(1).split("|") for t in expansions(template[:start] + o + template[end:])}


def test_fillers_of_training_and_evaluation_differ() -> None:
    for pool in members(fillers, Pool):
        assert isinstance(pool, Pool)
        rng = random.Random(0)
        seen, unseen = ({pool.draw(rng, side) for _ in range(200)} for side in (False, True))
        assert len(seen) > 2
        assert unseen
        assert not seen & unseen
    for operator in "+-":
        trained, evaluated = (
            {operands(Draw(random.Random(i), split), operator) for i in range(300)} for split in ("train", "fillers")
        )
        assert not trained & evaluated


def test_wordings_of_training_and_evaluation_differ() -> None:
    for wordings in members(tasks, Wordings):
        assert isinstance(wordings, Wordings)
        seen, unseen = ({t for one in side for t in expansions(one)} for side in (wordings.seen, wordings.unseen))
        assert seen
        assert unseen
        assert not seen & unseen
