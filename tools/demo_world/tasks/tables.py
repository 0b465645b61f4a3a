"""Lists and Markdown tables: made, extended, looked up."""

from __future__ import annotations

import json
from collections.abc import Callable

from tools.demo_world.draw import Draw, Wordings
from tools.demo_world.example import Example, turn
from tools.demo_world.fillers.people import CITIES, JOBS, NAMES
from tools.demo_world.fillers.things import COLOURS, FOODS, OBJECTS, THINGS

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
MAKE = Wordings(
    (
        "[show|format] [this|these] as a [Markdown |]table[, columns| with columns] {heads}:\n{rows}",
        "Markdown table ({heads}):\n{rows}",
        "{rows}\n[A|I need a] table [of|with] {heads}[, please|].",
        "[please |][make|write|create] a [Markdown |]table [with the columns|with] {heads}[ from this|]:\n{rows}",
        "[turn|convert|put] this [list |]into a [Markdown |]table with {heads}:\n{rows}",
        "{rows}\n\n[Show|Write] this as a [Markdown |]table with {heads}.",
    ),
    (
        "I have these entries:\n{rows}\nA table with {heads} would be nice.",
        "Table, please. Columns: {heads}. Entries:\n{rows}",
    ),
)
ADD_ROW = Wordings(
    (
        "[one more row|another row|new row]: {row}\n\n{table}",
        "{table}\n[And|Also|Plus] {row}[, please|].",
        "[insert|write] {row} [below|under] this table:\n{table}",
        "[please |]add [a row|the row|a line] with {row} [to this table|]:\n\n{table}",
        "{table}\n\n[Add|Append] {row}.",
        "[put|add] {row} at the end of [this|the] table:\n{table}",
    ),
    ("The table lacks {row}.\n\n{table}", "Extend this table by {row}:\n{table}"),
)
LOOK_UP = Wordings(
    (
        "{table}\n\n[Tell me|Find|Look up] the {head} of {key}.",
        "[find|read] the {head} of {key} in this table:\n{table}",
        "{table}\n\nWhat is the {head} of {key}?",
        "[look at this table|here is a table]:\n{table}\n[what|which] {head} does {key} have?",
        "What is the {head} of {key}?\n\n{table}",
    ),
    ("{table}\n{key}: which {head}?", "In the table, find the {head} for {key}.\n\n{table}"),
)
LIST = Wordings(
    (
        "bullet points[:| for] {items}.",
        "[format|show] {items} as a [bullet |]list.",
        "[please |][make|write] a [bullet |][list|shopping list] of {items}.",
        "[list|write down] {items} [as bullet points|as a list].",
        "[turn|put] {items} into a [bullet |]list.",
    ),
    ("Show {items} with bullets.", "I need {items} as bullets."),
)
NUMBERED = Wordings(
    (
        "[a |]numbered list[:| with] {items}.",
        "[format|show] {items} as a numbered list.",
        "[please |][make|write] a numbered list of {items}.",
        "[number|enumerate] {items}.",
        "[list|write down] {items} with numbers.",
    ),
    ("Show {items} as 1, 2, 3 and so on.", "Put numbers before {items}."),
)
COUNT = Wordings(
    (
        "[what is|tell me] the number of [items|things] in {items}.",
        "[how long is|how many has] this list? {items}",
        "how many [items|things|words] are in this list: {items}?",
        "[count|count the items of] this list: {items}.",
        "{items}: how many are there?",
    ),
    ("What is the length of the list {items}?", "Tell me the number of entries. {items}"),
)
CHANGE_LIST = Wordings(
    (
        "without {old}, please:\n{list}",
        "[strike|cut|drop] {old} from [this|the] list:\n{list}",
        "[please |]remove {old} from this list:\n{list}",
        "{list}\n\n[delete|remove|take out] {old}.",
        "my list:\n{list}\nplease take {old} off.",
    ),
    ("I already have {old}.\n{list}", "Cross out {old}:\n{list}"),
)
EXTEND_LIST = Wordings(
    (
        "with {new} too, please:\n{list}",
        "[extend|complete] the list with {new}:\n{list}",
        "[please |]add {new} to this list:\n{list}",
        "{list}\n\n[add|append] {new}[ to the list|].",
        "my list:\n{list}\nplease put {new} on it.",
    ),
    ("I also need {new}.\n{list}", "With {new} at the end, please:\n{list}"),
)


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
