"""Short stories, poems and letters with free characters, things and places."""

from __future__ import annotations

from tools.demo_world.draw import Draw, words_of
from tools.demo_world.example import Example, turn
from tools.demo_world.fillers.people import ANIMALS, HOBBIES, NAMES, WEEKDAYS
from tools.demo_world.fillers.things import ADJECTIVES, COLOURS, OBJECTS, PLACES, THINGS
from tools.demo_world.tasks.reading import article
from tools.demo_world.wordings import wordings

ASKED = wordings("stories")
STORY = ASKED["STORY"]
POEM = ASKED["POEM"]
LETTER = ASKED["LETTER"]
OPENINGS = (
    "[Once upon a time|One day|Long ago] there was {ah} named {x} who lived [near|by] the {p}.",
    "{x} was {ah} who lived [in a small house|alone|with many friends] by the {p}.",
    "In a [small|quiet|green|sunny|faraway] {p} lived {ah} named {x}.",
)
WISHES = (
    "Every day {x} looked for {ao}, but [there was none|nobody had one|it was never there].",
    "{x} had always wanted {ao}.",
    "One morning {x} noticed that the {c} {o} was gone.",
    "On {d} {x} found {ao} [under a tree|in the grass|behind the door].",
)
MEETINGS = (
    "On the way to the {p2} {x} met {aan} named {y}.",
    "At the {p2} {x} saw {aan}. Its name was {y}.",
    "Then {aan} named {y} came [along|by|to the {p}].",
)
TALKS = (
    '"[What are you looking for|What would you like to have|What do you need]?" asked {y}. "{ao_cap}," said {x}.',
    '"[Have you seen|Do you know] the {o}?" asked {x}. "[Come with me|Follow me]," said {y}.',
    '"I can help you with the {o}," said {y}. "[Thank you|That is kind]," said {x}.',
)
TURNS = (
    "Together they [walked|ran|went] to the {p2} and [searched|looked around] until the evening.",
    "They [worked|waited] all day, and {y} [sang a song|told a story|shared some {t}].",
    "It [rained|snowed|grew dark], but {x} and {y} did not [stop|give up|go home].",
)
ENDS = (
    "At last they found the {o}, and {x} was very happy.",
    "In the end {x} gave the {o} to {y}, and they became good friends.",
    "When the sun went down, {x} put the {o} [on the table|next to the door] and smiled.",
)
CLOSINGS = (
    "From that day on {x} and {y} [met every {d}|were never alone|went to the {p} together].",
    "The end.",
    "And {x} never forgot {y}.",
)
POEMS = (
    "{t_cap} in the morning light,\n{t} in the quiet night.\n"
    "[I see|I hear|We love] the {t}, near and far,\nshining like a [little|tiny|golden] star.",
    "{t_cap}, {t}, here and there,\n{t} [moving|sleeping|resting] everywhere.\n"
    "One is {a}, one is new,\nand [some|all] of them are {c} too.",
    "I went to the {p} to see\nsome {t} [waiting|looking] there for me.\n"
    "The {t} were {a}, the day was long,\nand [someone|a bird|the wind] sang a little song.",
)
GREETING = "\n\n[Best wishes|Kind regards|Many greetings]"
LETTERS = {
    "o": "Dear {x},\n\nI am writing [to you |]about the {o}. [It is {a}, and I would like to talk about it.|"
    "Could you bring it on {d}?|I would like to have it back by {d}.]" + GREETING,
    "h": "Dear {x},\n\nI would like to invite you to {h} on {d}. [We meet at the {p}|Please bring some {t}|"
    "It will be fun]." + GREETING,
}
COMMON = words_of("rivers stars trees clouds birds waves mountains dreams seasons trains ships winds")


def story(draw: Draw) -> Example:
    """Two characters, a thing, two places; the hero is given, and perhaps the thing."""
    hero, other = draw.some(ANIMALS, 2)
    x, y = draw.some(NAMES, 2)
    p, p2 = draw.some(PLACES, 2)
    o, adjective = draw.pick(OBJECTS), draw.pick(ADJECTIVES)
    fillers = {
        "ah": article(hero),
        "x": x,
        "y": y,
        "p": p,
        "p2": p2,
        "o": o,
        "ao": article(o),
        "a": adjective,
        "ao_cap": article(o).capitalize(),
        "c": draw.pick(COLOURS),
        "aan": article(other),
        "t": draw.pick(THINGS),
        "d": draw.one(WEEKDAYS),
    }
    parts = (OPENINGS, WISHES, MEETINGS, TALKS, TURNS, ENDS, CLOSINGS)
    text = " ".join(draw.phrase(part, **fillers) for part in parts).replace(" a a", " an a")
    named = draw.phrase(
        ("{ah} named {x}", "{ah} named {x} and {ao}", "{x} the {h}", "{ah}", "{ah} and {ao}"), h=hero, **fillers
    )
    return Example(
        "story",
        turn(draw.wording(STORY, hero=named[0].lower() + named[1:] if named[0] == "A" else named), text),
        "open",
    )


def poem(draw: Draw) -> Example:
    """Four lines about a thing."""
    t = draw.one(COMMON) if draw.chance(0.4) else draw.pick(THINGS)
    fillers = {
        "t": t,
        "t_cap": t.capitalize(),
        "a": draw.pick(ADJECTIVES),
        "c": draw.pick(COLOURS),
        "p": draw.pick(PLACES),
    }
    return Example("story", turn(draw.wording(POEM, t=t), draw.phrase(POEMS, **fillers)), "open")


def letter(draw: Draw) -> Example:
    """To a person, about a thing or an event; the wording decides."""
    fillers = {"x": draw.pick(NAMES), "o": draw.pick(OBJECTS), "h": draw.pick(HOBBIES), "d": draw.one(WEEKDAYS)}
    asked = draw.wording(LETTER, **fillers)
    kind = "h" if f" {fillers['h']} on " in asked else "o"
    text = draw.phrase([LETTERS[kind]], a=draw.pick(ADJECTIVES), p=draw.pick(PLACES), t=draw.pick(THINGS), **fillers)
    return Example("story", turn(asked, text), "open")
