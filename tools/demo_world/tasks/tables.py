"""Lists and Markdown tables: made, extended, looked up."""

from __future__ import annotations

import json
from collections.abc import Callable

from tools.demo_world.draw import Draw
from tools.demo_world.example import Example, turn
from tools.demo_world.fillers.people import CITIES, JOBS, NAMES
from tools.demo_world.fillers.things import COLOURS, FOODS, OBJECTS, THINGS
from tools.demo_world.wordings import wordings

COLUMNS: dict[str, Callable[[Draw], str]] = {
    "Name": lambda d: d.pick(NAMES),
    "City": lambda d: d.pick(CITIES),
    "Job": lambda d: d.pick(JOBS),
    "Age": lambda d: str(d.number(18, 90)),
    "Item": lambda d: d.pick(THINGS),
    "Price": lambda d: str(d.number(2, 99)),
    "Colour": lambda d: d.pick(COLOURS),
    "Food": lambda d: d.pick(FOODS),
    "Points": lambda d: str(d.number(1, 99)),
}
KEYS = (
    ("Name", "Age"),
    ("Name", "City"),
    ("Name", "Job", "City"),
    ("Item", "Price"),
    ("Item", "Colour", "Price"),
    ("Name", "Points"),
    ("Name", "Food"),
    ("Name", "Age", "City"),
)
ASKED = wordings("tables")
MAKE = ASKED["MAKE"]
ADD_ROW = ASKED["ADD_ROW"]
LOOK_UP = ASKED["LOOK_UP"]
LIST = ASKED["LIST"]
NUMBERED = ASKED["NUMBERED"]
COUNT = ASKED["COUNT"]
CHANGE_LIST = ASKED["CHANGE_LIST"]
EXTEND_LIST = ASKED["EXTEND_LIST"]


def series(items: list[str]) -> str:
    """Items as a sentence names them."""
    return ", ".join(items[:-1]) + " and " + items[-1]


def table_of(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [list(heads), ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rows_of(draw: Draw, heads: tuple[str, ...], n: int) -> list[list[str]]:
    """`n` rows whose first entries differ."""
    firsts: list[str] = []
    while len(firsts) < n:
        first = COLUMNS[heads[0]](draw)
        if first not in firsts:
            firsts.append(first)
    return [[first, *(COLUMNS[head](draw) for head in heads[1:])] for first in firsts]


def make(draw: Draw) -> Example:
    """A table from lines, with commas, colons or JSON."""
    heads = draw.one(KEYS)
    rows = rows_of(draw, heads, draw.number(2, 5))
    form = draw.number(0, 2)
    if form == 0:
        text = "\n".join(", ".join(row) for row in rows)
    elif form == 1:
        text = "\n".join(f"- {row[0]}: {', '.join(row[1:])}" for row in rows)
    else:
        keys = [head.lower() for head in heads]
        text = json.dumps([dict(zip(keys, row, strict=True)) for row in rows])
    asked = draw.wording(MAKE, heads=series(list(heads)), rows=text)
    return Example("table", turn(asked, table_of(heads, rows)))


def add_row(draw: Draw) -> Example:
    """One row more."""
    heads = draw.one(KEYS)
    rows = rows_of(draw, heads, draw.number(2, 5))
    asked = draw.wording(ADD_ROW, row=", ".join(rows[-1]), table=table_of(heads, rows[:-1]))
    return Example("table", turn(asked, table_of(heads, rows)))


def look_up(draw: Draw) -> Example:
    """One entry."""
    heads = draw.one(KEYS)
    rows = rows_of(draw, heads, draw.number(2, 5))
    row, column = draw.one(rows), draw.number(1, len(heads) - 1)
    asked = draw.wording(LOOK_UP, table=table_of(heads, rows), head=heads[column].lower(), key=row[0])
    return Example("table", turn(asked, f"The {heads[column].lower()} of {row[0]} is {row[column]}."))


def items_of(draw: Draw) -> list[str]:
    """Two to seven things of one kind."""
    return draw.some(draw.one((THINGS, FOODS, NAMES, OBJECTS, CITIES, COLOURS)), draw.number(2, 7))


def make_list(draw: Draw) -> Example:
    """With bullets or numbers."""
    items = items_of(draw)
    if draw.chance(0.5):
        return Example("list", turn(draw.wording(LIST, items=series(items)), "\n".join(f"- {item}" for item in items)))
    numbered = "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1))
    return Example("list", turn(draw.wording(NUMBERED, items=series(items)), numbered))


def count(draw: Draw) -> Example:
    """How long a list is, counted out."""
    items = items_of(draw)
    counted = "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1))
    asked = draw.wording(COUNT, items=", ".join(items))
    return Example("list", turn(asked, f"{counted}\nThere are {len(items)}."))


def change_list(draw: Draw) -> Example:
    """An item more or less."""
    items = draw.some(draw.one((THINGS, FOODS, NAMES, OBJECTS)), draw.number(3, 7))
    if draw.chance(0.5):
        old = draw.one(items)
        asked = draw.wording(CHANGE_LIST, old=old, list="\n".join(f"- {item}" for item in items))
        return Example("list", turn(asked, "\n".join(f"- {item}" for item in items if item != old)))
    asked = draw.wording(EXTEND_LIST, new=items[-1], list="\n".join(f"- {item}" for item in items[:-1]))
    return Example("list", turn(asked, "\n".join(f"- {item}" for item in items)))
