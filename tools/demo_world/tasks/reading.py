"""Questions about a paragraph: one fact of several people, and facts that are not in it."""

from __future__ import annotations

from dataclasses import dataclass

from tools.demo_world.draw import Draw, Pool, Wordings
from tools.demo_world.example import Example, turn
from tools.demo_world.fillers.people import ANIMALS, CITIES, HOBBIES, JOBS, NAMES
from tools.demo_world.fillers.things import COLOURS, FOODS, OBJECTS, PLACES
from tools.demo_world.wordings import wordings


@dataclass(frozen=True)
class Fact:
    """Something that is said of a person {x}: how it is told, asked, and answered."""

    pool: Pool | None  # of {v}; None for a number
    told: tuple[str, ...]
    asked: Wordings
    answered: str
    who: str  # asks for the person; "" when nothing does


def article(word: str) -> str:
    """`word` behind "a" or "an"."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


ASKED = wordings("reading")
FACTS = (
    Fact(
        CITIES,
        ("{x} lives in {v}.", "{x}'s home is in {v}.", "The city where {x} lives is {v}."),
        ASKED["CITY"],
        "{x} lives in {v}.",
        "Who lives in {v}?",
    ),
    Fact(
        JOBS,
        ("{x} works as {av}.", "{x} is {av}.", "{x} has a job as {av}."),
        ASKED["JOB"],
        "{x} is {av}.",
        "Who is {av}?",
    ),
    Fact(
        None,
        ("{x} is {v} years old.", "{x} turned {v} this year.", "{x}'s age is {v}."),
        ASKED["AGE"],
        "{x} is {v} years old.",
        "Who is {v} years old?",
    ),
    Fact(
        FOODS,
        ("{x} likes {v} best.", "{x}'s favourite food is {v}.", "{x} eats {v} every week."),
        ASKED["FOOD"],
        "{x}'s favourite food is {v}.",
        "Who likes {v}?",
    ),
    Fact(
        HOBBIES,
        ("{x} enjoys {v}.", "{x}'s hobby is {v}.", "In the evening {x} goes in for {v}."),
        ASKED["HOBBY"],
        "{x}'s hobby is {v}.",
        "Who enjoys {v}?",
    ),
    Fact(
        ANIMALS,
        ("{x} has {av}.", "{x} keeps {av} at home.", "{x}'s pet is {av}."),
        ASKED["PET"],
        "{x} has {av}.",
        "Who has {av}?",
    ),
    Fact(
        COLOURS,
        ("{x} drives {av} car.", "{x}'s car is {v}.", "The colour of {x}'s car is {v}."),
        ASKED["CAR"],
        "{x}'s car is {v}.",
        "Who has {av} car?",
    ),
    Fact(
        OBJECTS,
        ("{x} bought {av} yesterday.", "Yesterday {x} bought {av}.", "{x} has just bought {av}."),
        ASKED["BOUGHT"],
        "{x} bought {av}.",
        "Who bought {av}?",
    ),
    Fact(
        PLACES,
        ("{x} went to the {v} on Sunday.", "On Sunday {x} was at the {v}.", "{x} spent Sunday at the {v}."),
        ASKED["PLACE"],
        "{x} went to the {v} on Sunday.",
        "Who went to the {v}?",
    ),
)
FRAMES = ASKED["FRAMES"]


@dataclass(frozen=True)
class Story:
    """A paragraph and what it holds: per fact, a value for each person."""

    people: list[str]
    facts: list[Fact]
    values: dict[tuple[str, int], str]  # (person, index of the fact)
    text: str


def paragraph(draw: Draw) -> Story:
    """Two to four people, two or three facts each."""
    people = draw.some(NAMES, draw.number(1, 3))
    facts = draw.sample(FACTS, draw.number(2, 4 if len(people) < 3 else 3))
    values: dict[tuple[str, int], str] = {}
    for i, fact in enumerate(facts):
        chosen = (
            [str(n) for n in draw.sample(range(18, 90), len(people))]
            if fact.pool is None
            else draw.some(fact.pool, len(people))
        )
        values.update({(person, i): value for person, value in zip(people, chosen, strict=True)})
    order = list(values)
    if draw.chance(0.5):
        draw.rng.shuffle(order)
    sentences = [
        draw.phrase(facts[i].told, x=person, v=values[person, i], av=article(values[person, i])) for person, i in order
    ]
    return Story(people, facts, values, " ".join(sentences))


def frame(draw: Draw, text: str, question: str) -> str:
    """Text and question as one message."""
    return draw.phrase(FRAMES.unseen if draw.split == "templates" else FRAMES.seen, text=text, question=question)


def question(draw: Draw) -> Example:
    """What holds for a person."""
    story = paragraph(draw)
    person, i = draw.one(list(story.values))
    fact, value = story.facts[i], story.values[person, i]
    asked = draw.wording(fact.asked, x=person)
    answer = fact.answered.format(x=person, v=value, av=article(value))
    return Example("reading", turn(frame(draw, story.text, asked), answer))


def who(draw: Draw) -> Example:
    """For whom something holds."""
    story = paragraph(draw)
    person, i = draw.one(list(story.values))
    fact, value = story.facts[i], story.values[person, i]
    asked = fact.who.format(v=value, av=article(value))
    answer = fact.answered.format(x=person, v=value, av=article(value))
    return Example("reading", turn(frame(draw, story.text, asked), answer))


def not_said(draw: Draw) -> Example:
    """A question that the paragraph does not answer."""
    story = paragraph(draw)
    missing = [fact for fact in FACTS if fact not in story.facts]
    person = draw.one(story.people)
    asked = draw.wording(draw.one(missing).asked, x=person)
    return Example("reading", turn(frame(draw, story.text, asked), "The text does not say that."))
