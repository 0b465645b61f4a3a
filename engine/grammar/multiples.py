"""What the ``multipleOf`` of a grammar's JSON schemas may come to: llguidance counts no fuel for their remainders.

It keeps the remainder of a number's digits so far, and where several values meet (``anyOf``, ``allOf``) that by their
least common multiple. It may look through all remainders before the first mask, some 150,000 a second.
"""

from __future__ import annotations

import math
import re

from engine.grammar.grammar import GrammarError

MOST_REMAINDERS = 10_000  # to look through them takes 0.1 s
MOST_PLACES = 8  # decimal ones; with more, llguidance's 32 bits overflow

VALUE = re.compile(r'"multipleOf"\s*:\s*(-?[0-9][0-9.eE+-]*)')
ESCAPE = re.compile(r"\\u00([0-7][0-9a-fA-F])")  # JSON may spell any letter so


def check_multiples(source: str) -> None:
    """Refuse a grammar whose ``multipleOf``, of all its schemas together, have too many remainders.

    A text that looks like one inside a string counts too.

    Raises:
        GrammarError: they have; it says which values, and what they may come to.
    """
    text = ESCAPE.sub(lambda found: chr(int(found[1], 16)), source)
    values = {found[1]: scaled for found in VALUE.finditer(text) if (scaled := _scaled(found[1]))}
    places = max((places for _, places in values.values()), default=0)
    remainders = 1
    for digits, decimals in values.values():
        if places <= MOST_PLACES and remainders <= MOST_REMAINDERS:  # numbers of thousands of digits take long
            remainders = math.lcm(remainders, digits * 10 ** (places - decimals))
    if places > MOST_PLACES or remainders > MOST_REMAINDERS:
        shown = ", ".join(list(values)[:4])[:100]
        raise GrammarError(
            f"multipleOf is {shown}; values must have at most {MOST_PLACES} decimal places, and all of a grammar "
            f"together, written without the decimal point, a least common multiple of at most {MOST_REMAINDERS}"
        )


def _scaled(number: str) -> tuple[int, int] | None:
    """Digits and decimal places as llguidance finds them, in doubles; None: it refuses the number itself."""
    try:
        value = abs(float(number))
    except ValueError:
        return None
    if not value or math.isinf(value):
        return None
    places = 0
    while value % 1:
        value *= 10
        places += 1
    digits = int(value)
    while places and digits % 10 == 0:
        digits, places = digits // 10, places - 1
    return digits, places
