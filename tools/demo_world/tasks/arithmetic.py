"""Word problems of one and two steps, and plain sums."""

from __future__ import annotations

from dataclasses import dataclass

from tools.demo_world.draw import Draw, Wordings
from tools.demo_world.example import Example, turn
from tools.demo_world.fillers.people import NAMES
from tools.demo_world.fillers.things import THINGS
from tools.demo_world.tasks.working import OPERATORS, operands, result, working


@dataclass(frozen=True)
class Problem:
    """A word problem: what is told and asked, and the sentence that answers it with {c}."""

    operator: str
    told: str
    answer: str


SEEN = (
    Problem("+", "{x} has {a} {t}. {y} gives {x} {b} more. How many {t} does {x} have now?", "{x} has {c} {t} now."),
    Problem(
        "+", "{x} has {a} {t} and {y} has {b} {t}. How many {t} do they have together?", "Together they have {c} {t}."
    ),
    Problem(
        "+",
        "{x} [bought|found|collected] {a} {t} on Monday and {b} {t} on Tuesday. How many {t} is that in all?",
        "That is {c} {t} in all.",
    ),
    Problem(
        "+",
        "There are {a} {t} in the first box and {b} {t} in the second box. How many {t} are in both boxes?",
        "Both boxes hold {c} {t}.",
    ),
    Problem("+", "{y} has {a} {t}. {x} has {b} more {t} than {y}. How many {t} does {x} have?", "{x} has {c} {t}."),
    Problem(
        "+",
        "A shop sold {a} {t} in the morning and {b} {t} in the afternoon. How many {t} did it sell?",
        "The shop sold {c} {t}.",
    ),
    Problem(
        "-", "{x} has {a} {t}. {x} gives {b} of them to {y}. How many {t} does {x} have left?", "{x} has {c} {t} left."
    ),
    Problem("-", "{x} had {a} {t} and [lost|sold|used] {b}. How many {t} are left?", "There are {c} {t} left."),
    Problem(
        "-",
        "{x} has {a} {t} and {y} has {b} {t}. How many more {t} does {x} have than {y}?",
        "{x} has {c} more {t} than {y}.",
    ),
    Problem(
        "-",
        "There were {a} {t} on the table. {x} took {b} away. How many {t} are on the table now?",
        "There are {c} {t} on the table now.",
    ),
    Problem("-", "{x} needs {a} {t} and already has {b}. How many more {t} does {x} need?", "{x} needs {c} more {t}."),
    Problem("*", "{x} has {a} boxes with {b} {t} each. How many {t} does {x} have?", "{x} has {c} {t}."),
    Problem("*", "There are {a} tables with {b} {t} on each. How many {t} are there?", "There are {c} {t}."),
    Problem("*", "{x} buys {b} {t} every day for {a} days. How many {t} is that?", "That is {c} {t}."),
    Problem("*", "One bag holds {b} {t}. How many {t} do {a} bags hold?", "{a} bags hold {c} {t}."),
    Problem(
        "/",
        "{x} shares {a} {t} equally among {b} friends. How many {t} does each friend get?",
        "Each friend gets {c} {t}.",
    ),
    Problem("/", "{x} puts {a} {t} into bags of {b}. How many bags does {x} need?", "{x} needs {c} bags."),
    Problem("/", "{a} {t} lie in {b} equal rows. How many {t} are in each row?", "Each row has {c} {t}."),
)
UNSEEN = (
    Problem(
        "+",
        "{x} counts {a} {t} in the kitchen and {b} {t} in the garden. What is the total number of {t}?",
        "The total is {c} {t}.",
    ),
    Problem(
        "+",
        "After lunch {x} gets {b} {t}. Before lunch {x} had {a} {t}. How many {t} does {x} have?",
        "{x} has {c} {t}.",
    ),
    Problem("-", "Of {a} {t}, {b} are broken. How many {t} are still good?", "{c} {t} are still good."),
    Problem(
        "-", "{x} bakes for a party: {a} {t} were there and the guests ate {b}. How many {t} remain?", "{c} {t} remain."
    ),
    Problem(
        "*",
        "{x} fills {a} baskets and puts {b} {t} in every basket. How many {t} are in the baskets?",
        "There are {c} {t} in the baskets.",
    ),
    Problem("/", "{b} children divide {a} {t} fairly. How many {t} does every child get?", "Every child gets {c} {t}."),
)
SUMS = Wordings(
    (
        "{sum}, please",
        "the result of {words}?",
        "[how many are|what makes] {words}?",
        "[quick: |]{sum} =",
        "[What is|How much is|Calculate|Work out|Compute|Tell me] {sum}[?||.]",
        "{sum} = ?",
        "{sum}",
        "[What is|How much is|Calculate] {words}?",
        "[Please |Can you ]work out {sum}[?|.]",
        "What does {sum} make?",
    ),
    ("Find the result of {sum}.", "I need {sum}, please.", "Solve this: {sum}", "What do I get for {words}?"),
)
DRILLS = Wordings(
    (
        "[sums|exercises]:\n{sums}",
        "{sums}",
        "[do|finish] these[ sums|], please:\n{sums}",
        "[Work out|Calculate|Solve|Compute] [these|the following|these sums]:\n{sums}",
        "[Please solve|Answer] [these|each of these]:\n{sums}",
    ),
    ("Here is my homework:\n{sums}", "What are the results?\n{sums}"),
)
SECOND_STEPS = (
    ("+", "Then {x} [gets|finds|buys] {d} more."),
    ("-", "Then {x} [loses|eats|gives away] {d}."),
)
FIRST_STEPS = (
    ("+", "{x} has {a} {t} and gets {b} more from {y}."),
    ("-", "{x} has {a} {t} and gives {b} to {y}."),
    ("*", "{x} buys {a} bags with {b} {t} each."),
)
LAST_QUESTIONS = Wordings(
    ("How many {t} does {x} have[ now| in the end|]?",), ("What number of {t} is {x} left with?",)
)


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
