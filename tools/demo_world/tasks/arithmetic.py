"""Word problems of one and two steps, and plain sums."""

from __future__ import annotations

from dataclasses import dataclass

from tools.demo_world.draw import Draw
from tools.demo_world.example import Example, turn
from tools.demo_world.fillers.people import NAMES
from tools.demo_world.fillers.things import THINGS
from tools.demo_world.tasks.working import OPERATORS, operands, result, working
from tools.demo_world.wordings import lists, wordings


@dataclass(frozen=True)
class Problem:
    """A word problem: what is told and asked, and the sentence that answers it with {c}."""

    operator: str
    told: str
    answer: str


PROBLEMS = lists("problems")
SEEN = [Problem(*lines) for lines in PROBLEMS["SEEN"]]
UNSEEN = [Problem(*lines) for lines in PROBLEMS["UNSEEN"]]
ASKED = wordings("arithmetic")
SUMS = ASKED["SUMS"]
DRILLS = ASKED["DRILLS"]
SECOND_STEPS = PROBLEMS["SECOND_STEPS"]
FIRST_STEPS = PROBLEMS["FIRST_STEPS"]
LAST_QUESTIONS = ASKED["LAST_QUESTIONS"]


def word_problem(draw: Draw) -> Example:
    """One step, with its working."""
    problem = draw.one(UNSEEN if draw.split == "templates" else SEEN)
    a, b = operands(draw, problem.operator)
    x, y = draw.some(NAMES, 2)
    thing = draw.pick(THINGS)
    told = draw.phrase([problem.told], a=a, b=b, t=thing, x=x, y=y)
    c = result(a, problem.operator, b)
    answer = draw.phrase([problem.answer], a=a, b=b, c=c, t=thing, x=x, y=y)
    return Example("one step", turn(told, f"{working(a, problem.operator, b)}.\n{answer}"), "number")


def plain_sum(draw: Draw) -> Example:
    """A bare sum, in signs or in words."""
    operator = draw.one(OPERATORS)
    a, b = operands(draw, operator)
    spoken = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[operator]
    sign = draw.one(("*", "*", "x")) if operator == "*" else operator
    asked = draw.wording(SUMS, sum=f"{a} {sign} {b}", words=f"{a} {spoken} {b}")
    return Example("one step", turn(asked, f"{working(a, operator, b)}."), "number")


def drill(draw: Draw) -> Example:
    """Several sums, answered line by line."""
    asked, answered = [], []
    for _ in range(draw.number(2, 6)):
        operator = draw.one(OPERATORS)
        a, b = operands(draw, operator)
        asked.append(f"{a} {operator} {b}")
        answered.append(working(a, operator, b))
    return Example("drill", turn(draw.wording(DRILLS, sums="\n".join(asked)), "\n".join(answered)))


def two_steps(draw: Draw) -> Example:
    """A word problem whose second step uses the result of the first."""
    operator, first = draw.one(FIRST_STEPS)
    second_operator, second = draw.one(SECOND_STEPS)
    a, b = operands(draw, operator)
    middle = result(a, operator, b)
    if middle < 3 or middle > 90:
        return two_steps(draw)
    d = draw.number(1, min(middle - 2, 30)) if second_operator == "-" else draw.number(2, 30)
    x, y = draw.some(NAMES, 2)
    thing = draw.pick(THINGS)
    fillers = {"a": a, "b": b, "d": d, "x": x, "y": y, "t": thing}
    parts = [draw.phrase([first], **fillers), draw.phrase([second], **fillers), draw.wording(LAST_QUESTIONS, **fillers)]
    lines = [f"{working(a, operator, b)}.", f"{working(middle, second_operator, d)}."]
    lines.append(f"{x} has {result(middle, second_operator, d)} {thing}.")
    return Example("two steps", turn(" ".join(parts), "\n".join(lines)), "number")
