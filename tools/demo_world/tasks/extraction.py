"""Text to JSON: the fields that are asked for, in that order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from tools.demo_world.draw import Draw, Wordings
from tools.demo_world.example import Example, turn
from tools.demo_world.fillers.people import CITIES, HOBBIES, JOBS, MONTHS, NAMES, WEEKDAYS
from tools.demo_world.fillers.things import COLOURS, OBJECTS, PLACES, SUBJECTS, THINGS
from tools.demo_world.tasks.reading import article
from tools.demo_world.wordings import wordings

Value = str | int


@dataclass(frozen=True)
class Record:
    """A kind of record: how its fields are drawn, and sentences that hold all of them."""

    fields: dict[str, Callable[[Draw], Value]]
    told: Wordings


RECORDS = (
    Record(
        {"name": lambda d: d.pick(NAMES), "age": lambda d: d.number(18, 90), "city": lambda d: d.pick(CITIES)},
        Wordings(
            (
                "{name} is {age} years old and lives in {city}.",
                "{name}, {age}, [lives in|comes from|is from] {city}.",
                "In {city} lives {name}, who is {age}.",
                "My name is {name}, I am {age} years old and I live in {city}.",
                "{name} from {city} is {age} years old.",
            ),
            ("{city} is the home of {name}, aged {age}.", "Meet {name} ({age}) of {city}."),
        ),
    ),
    Record(
        {"name": lambda d: d.pick(NAMES), "job": lambda d: d.pick(JOBS), "city": lambda d: d.pick(CITIES)},
        Wordings(
            (
                "{name} works as {a_job} in {city}.",
                "{name} is {a_job} and lives in {city}.",
                "{name}, {a_job} from {city}, [wrote to us|called today|has a question].",
                "In {city} {name} works as {a_job}.",
            ),
            ("The {job} {name} moved to {city}.", "{city} has a new {job}: {name}."),
        ),
    ),
    Record(
        {"customer": lambda d: d.pick(NAMES), "item": lambda d: d.pick(THINGS), "quantity": lambda d: d.number(2, 60)},
        Wordings(
            (
                "{customer} [ordered|bought|would like] {quantity} {item}.",
                "Please send {quantity} {item} to {customer}.",
                "An order from {customer}: {quantity} {item}.",
                "{quantity} {item} for {customer}, please.",
            ),
            ("The {quantity} {item} are for {customer}.", "{customer} is waiting for {quantity} {item}."),
        ),
    ),
    Record(
        {"product": lambda d: d.pick(OBJECTS), "colour": lambda d: d.pick(COLOURS), "price": lambda d: d.number(2, 99)},
        Wordings(
            (
                "The {colour} {product} costs {price} [euros|dollars].",
                "We sell a {colour} {product} for {price} [euros|dollars].",
                "A {product} in {colour}, price {price} [euros|dollars].",
                "For {price} [euros|dollars] you get a {colour} {product}.",
            ),
            (
                "Only {price} euros for this {product}! It comes in {colour}.",
                "The price of the {colour} {product} is {price}.",
            ),
        ),
    ),
    Record(
        {"event": lambda d: d.pick(HOBBIES), "day": lambda d: d.one(WEEKDAYS), "place": lambda d: d.pick(PLACES)},
        Wordings(
            (
                "On {day} there is {event} at the {place}.",
                "Our {event} course is at the {place} on {day}.",
                "Join us for {event} on {day} at the {place}.",
                "The {place} offers {event} every {day}.",
            ),
            (
                "{day} is the day of {event}, and the {place} is where we meet.",
                "Come to the {place}! We do {event} on {day}.",
            ),
        ),
    ),
    Record(
        {
            "student": lambda d: d.pick(NAMES),
            "subject": lambda d: d.pick(SUBJECTS),
            "points": lambda d: d.number(10, 99),
        },
        Wordings(
            (
                "{student} got {points} points in {subject}.",
                "In {subject} {student} reached {points} points.",
                "{student}'s result in {subject} is {points} points.",
            ),
            ("{points} points for {student} in {subject}!", "The {subject} test of {student}: {points}."),
        ),
    ),
    Record(
        {
            "guest": lambda d: d.pick(NAMES),
            "month": lambda d: d.one(MONTHS),
            "day": lambda d: d.number(1, 28),
            "nights": lambda d: d.number(2, 9),
        },
        Wordings(
            (
                "{guest} arrives on {month} {day} and stays for {nights} nights.",
                "A room for {guest} from {month} {day}, {nights} nights.",
                "From {month} {day} {guest} will stay {nights} nights.",
            ),
            (
                "{guest} wants {nights} nights, the first on {month} {day}.",
                "Book {nights} nights for {guest}. Arrival: {month} {day}.",
            ),
        ),
    ),
)
ASKED = wordings("extraction")
ASK = ASKED["ASK"]
ASK_ALL = ASKED["ASK_ALL"]


def listed(keys: list[str], draw: Draw) -> str:
    """The keys as a sentence names them."""
    if len(keys) == 1:
        return keys[0]
    joint = draw.one((", ", " and ", ", and "))
    return ", ".join(keys[:-1]) + joint + keys[-1]


def one_record(draw: Draw) -> Example:
    """One record, all its fields or some, in any order."""
    record = draw.one(RECORDS)
    values, text = told(draw, record)
    keys = list(values)
    if draw.chance(0.5):
        keys = draw.sample(keys, draw.number(1, len(keys)))
    answer = json.dumps({key: values[key] for key in keys}, ensure_ascii=False)
    return Example("extraction", turn(draw.wording(ASK, keys=listed(keys, draw), text=text), answer), "json")


def several_records(draw: Draw) -> Example:
    """Two or three records of one kind, all their fields."""
    record = draw.one(RECORDS)
    entries = [told(draw, record) for _ in range(draw.number(2, 3))]
    text = " ".join(text for _, text in entries)
    answer = json.dumps([values for values, _ in entries], ensure_ascii=False)
    keys = listed(list(record.fields), draw)
    return Example("extraction", turn(draw.wording(ASK_ALL, keys=keys, text=text), answer), "json")


def told(draw: Draw, record: Record) -> tuple[dict[str, Value], str]:
    """The values of a record, and a sentence that holds them."""
    values = {key: value(draw) for key, value in record.fields.items()}
    articles = {"a_job": article(str(values["job"]))} if "job" in values else {}
    return values, draw.wording(record.told, **values, **articles)
