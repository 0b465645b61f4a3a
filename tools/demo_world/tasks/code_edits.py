"""Editing small Python functions: the answer is the whole new function."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from tools.demo_world.draw import Draw
from tools.demo_world.example import Example, turn
from tools.demo_world.fillers.code_names import FUNCTIONS, VARIABLES
from tools.demo_world.tasks.functions import COMPARISONS, OPERATORS, Function, fenced, function
from tools.demo_world.wordings import wordings

Change = Callable[[Draw, Function], "tuple[str, str, str]"]  # what is asked, source before, source after
ASKED = wordings("code_edits")
RENAME = ASKED["RENAME"]
RENAME_FUNCTION = ASKED["RENAME_FUNCTION"]
PRINT_BEFORE = ASKED["PRINT_BEFORE"]
DOCSTRING = ASKED["DOCSTRING"]
CONSTANT = ASKED["CONSTANT"]
DEFAULT = ASKED["DEFAULT"]
OPERATOR = ASKED["OPERATOR"]
FIX = ASKED["FIX"]
WRAPPED = ("{asked}:\n\n{code}", "{asked}.\n{code}", "{code}\n{asked}.", "{asked}\n\n{code}", "{code}\n\n{asked}")
UNSEEN_WRAPPED = ("Here is my function.\n{code}\nTask: {asked}.", "Look at this:\n\n{code}\n\nNow {asked}.")
PURPOSES = ("Return the {a} of the {b}.", "Compute {a} from {b}.", "Find {a} in {b}.", "Work with {a} and {b}.")


def renamed(source: str, old: str, new: str) -> str:
    """`source` with the name `old` exchanged for `new`."""
    return re.sub(rf"\b{re.escape(old)}\b", new, source)


def rename(draw: Draw, f: Function) -> tuple[str, str, str]:
    """A variable."""
    old = draw.one(f.variables)
    new = draw.pick(VARIABLES)
    if new in f.variables or new == f.name:
        return rename(draw, f)
    return draw.wording(RENAME, old=old, new=new), f.source, renamed(f.source, old, new)


def rename_function(draw: Draw, f: Function) -> tuple[str, str, str]:
    """The function itself."""
    new = draw.pick(FUNCTIONS)
    return draw.wording(RENAME_FUNCTION, old=f.name, new=new), f.source, replace(f, name=new).source


def insert_print(draw: Draw, f: Function) -> tuple[str, str, str]:
    """A line before the last return."""
    if not f.body[-1].startswith("return ") or len(f.body) < 2:
        return rename(draw, f)
    v = draw.one(f.variables[:1])
    after = f.inserted(len(f.body) - 1, f"print({v})").source
    return draw.wording(PRINT_BEFORE, v=v), f.source, after


def docstring(draw: Draw, f: Function) -> tuple[str, str, str]:
    """A line behind the head."""
    a, b = draw.some(VARIABLES, 2)
    text = draw.phrase(PURPOSES, a=a.replace("_", " "), b=b.replace("_", " "))
    return draw.wording(DOCSTRING, text=text), f.source, f.inserted(0, f'"""{text}"""').source


def constant(draw: Draw, f: Function) -> tuple[str, str, str]:
    """Another number."""
    numbers = re.findall(r"\b\d+\b", f.source)
    if len(set(numbers)) != 1:
        return rename(draw, f)
    new = str(draw.number(21, 99))
    return draw.wording(CONSTANT, old=numbers[0], new=new), f.source, renamed(f.source, numbers[0], new)


def default(draw: Draw, f: Function) -> tuple[str, str, str]:
    """A default value of the last parameter."""
    v, k = f.parameters.split(", ")[-1], draw.number(0, 50)
    return draw.wording(DEFAULT, v=v, k=k), f.source, replace(f, parameters=f"{f.parameters}={k}").source


def operator(draw: Draw, f: Function) -> tuple[str, str, str]:
    """Another operator, of the same kind."""
    for kind in (COMPARISONS, OPERATORS):
        found = [op for op in kind if f" {op} " in f.source]
        if len(found) == 1 and f.source.count(f" {found[0]} ") == 1:
            new = draw.one([op for op in kind if op != found[0]])
            after = f.source.replace(f" {found[0]} ", f" {new} ")
            return draw.wording(OPERATOR, old=found[0], new=new), f.source, after
    return rename(draw, f)


def fix(draw: Draw, f: Function) -> tuple[str, str, str]:
    """One of the usual mistakes, undone."""
    broken = draw.one(tuple(filter(None, mistakes(f))))
    return draw.wording(FIX), broken, f.source


def mistakes(f: Function) -> list[str]:
    """`f` with a colon, a bracket, an indentation or a return wrong, each where it can be; "" where it cannot."""
    lines = f.source.split("\n")
    body = "\n".join(lines[1:])
    colon = next((line for line in lines[1:] if line.endswith(":")), None)
    return [
        f.source.replace("):", ")", 1),
        f.source.replace(colon, colon[:-1], 1) if colon else "",
        f.source.replace("return ", "retrun ", 1) if "return " in body else "",
        f.source.replace(" == ", " = ", 1) if " == " in body else "",
        f"{lines[0]}\n{body[4:]}",
        f.source.replace("def ", "define ", 1),
        f.source.replace(")", "", 1),
    ]


CHANGES: tuple[Change, ...] = (
    rename,
    rename,
    rename,
    rename_function,
    rename_function,
    insert_print,
    docstring,
    constant,
    default,
    operator,
    fix,
    fix,
)


def edit(draw: Draw) -> Example:
    """A function and what to do with it."""
    asked, before, after = draw.one(CHANGES)(draw, function(draw))
    wrapped = draw.one(UNSEEN_WRAPPED if draw.split == "templates" else WRAPPED)
    code = fenced(before) if draw.chance(0.75) else before
    text = wrapped.format(asked=asked, code=code).replace("?.", "?").replace("?:", "?")
    return Example("code edit", turn(text, fenced(after)))
