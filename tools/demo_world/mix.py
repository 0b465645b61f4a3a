"""What the small world consists of: all tasks, their shares, and conversations made of them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from tools.demo_world.draw import FEW, Draw, Split
from tools.demo_world.example import Example
from tools.demo_world.tasks import (
    arithmetic,
    code_edits,
    code_writing,
    extraction,
    reading,
    small_talk,
    stories,
    tables,
    text_edits,
    tool_calls,
    words,
)

Maker = Callable[[Draw], Example]
SHARES: dict[Maker, float] = {  # of examples
    arithmetic.word_problem: 9,
    arithmetic.plain_sum: 5,
    arithmetic.drill: 5,
    arithmetic.two_steps: 3,
    reading.question: 5,
    reading.who: 2,
    reading.not_said: 2,
    text_edits.edit: 26,
    text_edits.spelling: 1.5,
    code_edits.edit: 14,
    code_writing.write: 4,
    code_writing.explain: 1,
    extraction.one_record: 7,
    extraction.several_records: 3,
    tool_calls.call: 5,
    tool_calls.invented: 5,
    tool_calls.two_calls: 1.5,
    tool_calls.answer: 2.5,
    tool_calls.not_needed: 1,
    tables.make: 3,
    tables.add_row: 2,
    tables.look_up: 2,
    tables.make_list: 2,
    tables.count: 1,
    tables.change_list: 2,
    words.sort_numbers: 2,
    words.sort_words: 1.5,
    words.reverse: 1,
    words.upper: 0.7,
    words.repeat: 8,  # copying in its purest form: what all editing is learnt from
    words.position: 1,
    stories.story: 5,
    stories.poem: 1.5,
    stories.letter: 1.5,
    small_talk.talk: 6,
    small_talk.my_name: 1,
}
MAKERS, WEIGHTS = list(SHARES), list(SHARES.values())
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "Answer clearly and briefly.",
    "You are a small demo model.",
    "Be brief.",
    "You help with texts and numbers.",
    "You are a careful editor.",
    "You are a friendly assistant.",
)
WITH_SYSTEM = 0.2
OPENERS = (
    "Hi! ", "Hello, ", "Please help me. ", "Could you help me? ", "Next: ", "One more thing: ", "Now: ", "A question: ",
    "My next task: ", "Good morning. ",
)  # fmt: skip
OPENED = 0.12  # share of conversations that do not come to the point at once
SEED = 20_000  # of questions; conversations have their own
CONTINUED = 0.3  # share of conversations to which another example is added; again after that


def make(rng: random.Random, split: Split) -> Example:
    """One example of any task."""
    (maker,) = rng.choices(MAKERS, WEIGHTS)
    return maker(Draw(rng, split, few=split == "train" and rng.random() < FEW))


def conversation(seed: int, index: int) -> Example:
    """Training conversation number `index`: one example or several in a row, with or without a system message.

    Every conversation has a generator of its own, so that a stream can begin anywhere.
    """
    rng = random.Random(f"{seed}/{index}")
    example = make(rng, "train")
    messages = list(example.messages)
    if rng.random() < OPENED:
        messages[0] = {"role": "user", "content": rng.choice(OPENERS) + messages[0]["content"]}
    while rng.random() < CONTINUED:
        further = make(rng, "train")
        if not further.tools:
            messages += further.messages
    if rng.random() < WITH_SYSTEM:
        messages.insert(0, {"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    return Example(example.task, messages, example.check, example.tools)


def conversations(seed: int, first: int = 0) -> Iterator[Example]:
    """All training conversations from number `first` on, without end."""
    index = first
    while True:
        yield conversation(seed, index)
        index += 1


def questions(split: Split, each: int, tasks: Sequence[str] = ()) -> list[Example]:
    """`each` examples of every task, its makers taking turns as often as they do in training."""
    rng = random.Random(f"{SEED}/{split}")
    draw, makers = Draw(rng, split), list(SHARES)
    found: dict[str, list[Example]] = defaultdict(list)
    names = {maker: maker(draw).task for maker in makers}
    wanted = set(tasks or names.values())
    while min(len(found[task]) for task in wanted) < each:
        (maker,) = rng.choices(makers, list(SHARES.values()))
        if names[maker] in wanted and len(found[names[maker]]) < each:
            found[names[maker]].append(maker(draw))
    return [example for task in sorted(found) for example in found[task]]
