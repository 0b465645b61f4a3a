"""Small Python functions, made of shapes with free names, in a form that can be changed and written out again."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tools.demo_world.draw import Draw
from tools.demo_world.fillers.code_names import FUNCTIONS, VARIABLES

# {f} the function, {a} {b} {c} its variables, {k} a constant, {op} an operator. Parameters come first.
SHAPES = (
    ("{a}, {b}", ("return {a} {op} {b}",)),
    ("{a}, {b}", ("{c} = {a} {op} {b}", "return {c}")),
    ("{a}", ("{b} = {a} {op} {k}", "return {b}")),
    ("{a}", ("{b} = 0", "for {c} in {a}:", "    {b} += {c}", "return {b}")),
    ("{a}", ("{b} = []", "for {c} in {a}:", "    {b}.append({c} {op} {k})", "return {b}")),
    ("{a}", ("{b} = []", "for {c} in {a}:", "    if {c} {cmp} {k}:", "        {b}.append({c})", "return {b}")),
    ("{a}, {b}", ("if {a} {cmp} {b}:", "    return {a}", "return {b}")),
    ("{a}", ("if {a} {cmp} {k}:", "    return True", "return False")),
    ("{a}", ("{b} = 0", "for {c} in {a}:", "    if {c} {cmp} {k}:", "        {b} += 1", "return {b}")),
    ("{a}, {b}", ("{c} = {a}[{b}]", "return {c}")),
    ("{a}", ("return [{b} {op} {k} for {b} in {a}]",)),
    ("{a}", ("return [{b} for {b} in {a} if {b} {cmp} {k}]",)),
    ("{a}", ("{b} = {a}[0]", "for {c} in {a}:", "    if {c} {cmp} {b}:", "        {b} = {c}", "return {b}")),
    ("{a}, {b}", ("{c} = {{}}", "for {d}, {e} in zip({a}, {b}):", "    {c}[{d}] = {e}", "return {c}")),
    ("{a}", ("{b} = len({a})", "{c} = sum({a})", "return {c} / {b}")),
    ("{a}", ("{b} = {a}.strip()", "{c} = {b}.lower()", "return {c}")),
    ("{a}, {b}", ("{c} = {a}.split({b})", "return {c}[0]")),
    ("{a}", ("while {a} {cmp} {k}:", "    print({a})", "    {a} = {a} {op} {k2}")),
    ("{a}, {b}", ("{c} = {b}.get({a})", "if {c} is None:", "    return {k}", "return {c}")),
    ("{a}, {b}", ("for {c} in {a}:", "    if {c} == {b}:", "        return True", "return False")),
)
OPERATORS = ("+", "-", "*")
COMPARISONS = ("<", ">", "==", "<=", ">=", "!=")


@dataclass(frozen=True)
class Function:
    """A function of the form def, lines, all with their indentation."""

    name: str
    variables: tuple[str, ...]  # those that occur, parameters first
    parameters: str
    body: tuple[str, ...]

    @property
    def source(self) -> str:
        """The whole definition."""
        return "\n".join([f"def {self.name}({self.parameters}):", *(f"    {line}" for line in self.body)])

    @property
    def fenced(self) -> str:
        """As Markdown."""
        return fenced(self.source)

    def line(self, i: int, text: str | None) -> Function:
        """With line `i` of the body changed, or left out."""
        new = () if text is None else (text,)
        return replace(self, body=(*self.body[:i], *new, *self.body[i + 1 :]))

    def inserted(self, i: int, text: str) -> Function:
        """With a line more in front of line `i` of the body."""
        return replace(self, body=(*self.body[:i], text, *self.body[i:]))


def fenced(source: str) -> str:
    """`source` as a block of Markdown."""
    return f"```python\n{source}\n```"


def function(draw: Draw) -> Function:
    """One of any shape; `rebuilt` makes another of the same."""
    parameters, body = draw.one(SHAPES)
    return filled(draw, draw.pick(FUNCTIONS), parameters, body)


def filled(draw: Draw, name: str, parameters: str, body: tuple[str, ...]) -> Function:
    """The function of a shape, with names and constants drawn."""
    names = [n for n in draw.some(VARIABLES, 6) if n != name][:5]
    fillers = dict(zip("abcde", names, strict=True))
    constants = {
        "k": draw.number(0, 20),
        "k2": draw.number(1, 5),
        "op": draw.one(OPERATORS),
        "cmp": draw.one(COMPARISONS),
    }
    text = "\n".join([parameters, *body])
    used = tuple(v for key, v in fillers.items() if "{" + key + "}" in text)
    lines = [line.format(**fillers, **constants) for line in (parameters, *body)]
    return Function(name, used, lines[0], tuple(lines[1:]))
