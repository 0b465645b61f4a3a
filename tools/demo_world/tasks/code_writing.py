"""Writing a small Python function that does what is asked, and saying what one does."""

from __future__ import annotations

from dataclasses import dataclass

from tools.demo_world.draw import Draw
from tools.demo_world.example import Example, turn
from tools.demo_world.fillers.code_names import FUNCTIONS
from tools.demo_world.tasks.functions import fenced
from tools.demo_world.wordings import wordings


@dataclass(frozen=True)
class Purpose:
    """What a function is for."""

    does: tuple[str, ...]  # how it is asked for, third person; {k} a number
    name: str
    parameters: str
    body: str  # indented by four spaces


EXTREME = """\
    best = numbers[0]
    for number in numbers:
        if number ? best:
            best = number
    return best"""
VOWELS = """\
    count = 0
    for letter in text:
        if letter in "aeiou":
            count += 1
    return count"""
PURPOSES = (
    Purpose(("adds two numbers", "returns the sum of two numbers"), "add", "a, b", "    return a + b"),
    Purpose(("subtracts two numbers", "returns the difference of two numbers"), "subtract", "a, b", "    return a - b"),
    Purpose(("multiplies two numbers", "returns the product of two numbers"), "multiply", "a, b", "    return a * b"),
    Purpose(("divides two numbers", "returns the quotient of two numbers"), "divide", "a, b", "    return a / b"),
    Purpose(("adds {k} to a number",), "add_{k}", "number", "    return number + {k}"),
    Purpose(("multiplies a number by {k}",), "times_{k}", "number", "    return number * {k}"),
    Purpose(("squares a number", "returns the square of a number"), "square", "number", "    return number * number"),
    Purpose(
        ("checks whether a number is even", "tells if a number is even"),
        "is_even",
        "number",
        "    return number % 2 == 0",
    ),
    Purpose(
        ("checks whether a number is odd", "tells if a number is odd"), "is_odd", "number", "    return number % 2 == 1"
    ),
    Purpose(("checks whether a number is larger than {k}",), "is_larger", "number", "    return number > {k}"),
    Purpose(
        ("returns the larger of two numbers", "finds the maximum of two numbers"),
        "maximum",
        "a, b",
        "    if a > b:\n        return a\n    return b",
    ),
    Purpose(
        ("returns the smaller of two numbers", "finds the minimum of two numbers"),
        "minimum",
        "a, b",
        "    if a < b:\n        return a\n    return b",
    ),
    Purpose(
        ("sums a list", "returns the sum of a list of numbers", "adds all numbers of a list"),
        "total",
        "numbers",
        "    total = 0\n    for number in numbers:\n        total += number\n    return total",
    ),
    Purpose(
        ("finds the largest number in a list", "returns the maximum of a list"),
        "largest",
        "numbers",
        EXTREME.replace("?", ">"),
    ),
    Purpose(
        ("finds the smallest number in a list", "returns the minimum of a list"),
        "smallest",
        "numbers",
        EXTREME.replace("?", "<"),
    ),
    Purpose(
        ("counts the vowels in a text", "returns the number of vowels in a string"),
        "count_vowels",
        "text",
        VOWELS,
    ),
    Purpose(("reverses a text", "returns a string backwards"), "reverse", "text", "    return text[::-1]"),
    Purpose(
        ("checks whether a word is a palindrome", "tells if a text is a palindrome"),
        "is_palindrome",
        "text",
        "    return text == text[::-1]",
    ),
    Purpose(
        ("returns the average of a list", "computes the mean of a list of numbers"),
        "average",
        "numbers",
        "    return sum(numbers) / len(numbers)",
    ),
    Purpose(
        ("keeps the even numbers of a list", "filters the even numbers out of a list"),
        "even_numbers",
        "numbers",
        "    return [number for number in numbers if number % 2 == 0]",
    ),
    Purpose(
        ("computes the factorial of a number", "returns the factorial of a number"),
        "factorial",
        "number",
        "    result = 1\n    for i in range(2, number + 1):\n        result *= i\n    return result",
    ),
    Purpose(("returns the first {k} items of a list",), "first_items", "items", "    return items[:{k}]"),
    Purpose(
        ("counts down from a number", "prints the numbers down to one"),
        "count_down",
        "number",
        "    while number > 0:\n        print(number)\n        number -= 1",
    ),
    Purpose(("greets a person by name", "prints a greeting"), "greet", "name", '    print(f"Hello, {{name}}!")'),
    Purpose(
        ("counts the words in a text", "returns the number of words in a string"),
        "count_words",
        "text",
        "    return len(text.split())",
    ),
    Purpose(
        ("converts a text to upper case", "returns a string in capital letters"),
        "to_upper",
        "text",
        "    return text.upper()",
    ),
)
ASKED = wordings("code_writing")
ASK = ASKED["ASK"]
ASK_NAMED = ASKED["ASK_NAMED"]
EXPLAIN = ASKED["EXPLAIN"]


def write(draw: Draw) -> Example:
    """A function, half of the time under a name that is given."""
    purpose, k = draw.one(PURPOSES), draw.number(2, 60)
    name = purpose.name.format(k=k)
    does = draw.one(purpose.does).format(k=k)
    if draw.chance(0.6):
        name = draw.pick(FUNCTIONS)
        asked = draw.wording(ASK_NAMED, f=name, does=does)
    else:
        asked = draw.wording(ASK, does=does)
    source = f"def {name}({purpose.parameters}):\n{purpose.body.format(k=k)}"
    return Example("code writing", turn(asked, fenced(source)))


def explain(draw: Draw) -> Example:
    """What a function does, in the words in which it would be asked for."""
    purpose, k = draw.one(PURPOSES), draw.number(2, 60)
    name = draw.pick(FUNCTIONS)
    source = f"def {name}({purpose.parameters}):\n{purpose.body.format(k=k)}"
    does = purpose.does[0].format(k=k)
    return Example("code writing", turn(draw.wording(EXPLAIN, code=fenced(source)), f"The function {name} {does}."))
