"""Write a demo model's card, README.md in its folder, from its own answers.

  python -m tools.demo_world.card target  --out DIR [--each 50] [--notes FILE]
  python -m tools.demo_world.card drafter --out DIR [--each 50]

Reads training.json, which training left in the folder, and evaluates the weights that lie there.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from tools.demo_world.draw import HELD_OUT
from tools.demo_world.exact import Answer, evaluate, markdown, table

N_SHOWN = 10
TEXT = """---
license: other
language: en
---
# spectra-serve demo {role}

{purpose} It knows a small, generated world and nothing else: small sums, questions about a text that is given, edits of
texts and small Python functions, JSON, tables, lists, tool calls, short stories. It is **not** a source of facts.

| | |
|---|---|
| architecture | Llama, {parameters:,} parameters, bf16, {bytes:,} bytes on disk with its tokenizer |
| tokenizer | byte-level BPE, 4096 tokens, digits and spaces before names apart; shared by target and drafter |
| trained on | {tokens:,} tokens of generated conversations, {steps:,} steps; runs before: docs/demo-model.md |
| data | `tools/demo_world/` of the repository: templates and word lists of its own, no text of others |

## Exact answers
Greedy, {each} questions per cell. *Held-out fillers*: names, things, identifiers, many of them invented, and pairs
of numbers that training never saw. *Held-out wordings*: ways to ask, and tools, that it never saw. A loop is an
8-gram that occurs three times in an answer and not in the right one.

{table}

## {n_shown} answers as they come
One per task, the first question of each; greedy.

{answers}

## Limits
* Words outside its templates are noise to it, so a question in other words often gets the answer to another question.
* Sums and differences below 100, products of at most 30 and 9; two steps at most.
* It copies what it is given, so **methods that copy look better on it than on other models**. Figures of methods in
  this project come from another model of the same size, trained on texts of people.

## Commands
```
python -m tools.demo_world.train {role} --work DIR --out DIR --tokens {tokens}
python -m tools.demo_world.card {role} --out DIR
```
{notes}"""
PURPOSES = {
    "target": "A small language model that ships inside spectra-serve, so that the server runs without a download.",
    "drafter": "A draft model for the demo target, distilled from it; same tokenizer.",
}


def first_answers(found: list[Answer]) -> list[Answer]:
    """The first of every task with fillers that are new, at most N_SHOWN tasks."""
    by_task: dict[str, Answer] = {}
    for answer in found:
        if answer.split == "fillers":
            by_task.setdefault(answer.example.task, answer)
    return list(by_task.values())[:N_SHOWN]


def quoted(answer: Answer) -> str:
    """A question and what was answered."""
    asked = answer.example.messages[-2]["content"]
    mark = "" if answer.right else " (wrong)"
    return f"**{answer.example.task}**{mark}\n````text\n{asked}\n>>> {answer.text}\n````"


def card_text(training: dict[str, Any], found: list[Answer], size: int, each: int, notes: str) -> str:
    """The card.

    Args:
        training: what training left in the folder.
        found: answers to `each` questions per task and split.
        size: bytes of the folder.
        each: questions per cell.
        notes: Markdown, put at the end.
    """
    shown = first_answers(found)
    card = TEXT.format(
        role=training["role"],
        purpose=PURPOSES[training["role"]],
        parameters=training["parameters"],
        bytes=size,
        tokens=training["tokens"],
        steps=training["steps"],
        each=each,
        table=markdown(table(found)),
        n_shown=len(shown),
        answers="\n\n".join(map(quoted, shown)),
        notes=notes,
    )
    return card.rstrip() + "\n"


def main(argv: list[str] | None = None) -> None:
    """Evaluate and write."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo_world.card",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("role", choices=sorted(PURPOSES), help="which model")
    parser.add_argument("--out", type=Path, required=True, help="parent of the model folders")
    parser.add_argument("--each", type=int, default=50, help="questions per task and split (default: 50)")
    parser.add_argument("--notes", type=Path, help="Markdown file that is put at the end of the card")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    args = parser.parse_args(argv)

    torch.set_num_threads(args.threads)
    folder = args.out / args.role
    training = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    size = sum(f.stat().st_size for f in folder.iterdir() if f.name != "README.md")
    notes = args.notes.read_text(encoding="utf-8") if args.notes else ""
    found = evaluate(folder, args.each, HELD_OUT)
    (folder / "README.md").write_text(card_text(training, found, size, args.each, notes), encoding="utf-8")
    print(json.dumps(table(found)))


if __name__ == "__main__":
    main()
