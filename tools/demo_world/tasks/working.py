"""Sums as the model writes them down: small steps, each of which fits a table that can be learnt."""

from __future__ import annotations

from tools.demo_world.draw import Draw

OPERATORS = ("+", "-", "*", "/")


def operands(draw: Draw, operator: str) -> tuple[int, int]:
    """Two numbers whose result is a natural number of at most three digits.

    Sums and differences keep some pairs for evaluation; products and quotients are tables and keep none.
    """
    if operator == "+":
        return draw.pair("+", lambda: (draw.number(2, 99), draw.number(2, 99)))
    if operator == "-":

        def pair() -> tuple[int, int]:
            a = draw.number(4, 99)
            return a, draw.number(1, a - 2)

        return draw.pair("-", pair)
    a, b = draw.number(2, 10), draw.number(2, 10)
    if operator == "*":
        return (draw.number(11, 30), b) if b < 10 and draw.chance(0.25) else (a, b)
    return a * b, b


def result(a: int, operator: str, b: int) -> int:
    """The right one."""
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[operator]


def working(a: int, operator: str, b: int) -> str:
    """All steps and at last "a + b = c", without a full stop."""
    steps: list[str] = []
    tens, ones = b - b % 10, b % 10
    if operator == "+" and a > 9 and b > 9:
        a_tens, a_ones = a - a % 10, a % 10
        steps = [
            f"{a_tens} + {tens} = {a_tens + tens}",
            f"{a_ones} + {ones} = {a_ones + ones}",
            f"{a_tens + tens} + {a_ones + ones} = {a + b}",
        ]
    elif operator == "-" and tens and ones:
        steps = [f"{a} - {tens} = {a - tens}", f"{a - tens} - {ones} = {a - b}"]
    elif operator == "*" and a > 10:
        a_tens, a_ones = a - a % 10, a % 10
        steps = [
            f"{a_tens} * {b} = {a_tens * b}",
            f"{a_ones} * {b} = {a_ones * b}",
            f"{a_tens * b} + {a_ones * b} = {a * b}",
        ]
    return ", ".join([*steps, f"{a} {operator} {b} = {result(a, operator, b)}"])
