"""Evaluate a demo model by exact answers: a table by task, for held-out fillers and for held-out wordings.

  python -m tools.demo_world.exact DIR [--each 50] [--split fillers|templates] [--show 10] [--json FILE]

Every answer is greedy. It counts when it equals the right one: as text, as a JSON value, as a tool call, or by its last
number (word problems and sums). Stories have no right answer; like all others they are searched for loops (some 8-gram
three times, and more often than in the right answer). --show prints that many answers as they come, unselected.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.demo_model.report import is_loop
from tools.demo_world.draw import HELD_OUT, Split
from tools.demo_world.example import Example
from tools.demo_world.mix import questions
from tools.demo_world.stream import prompt_of

ROWS = 25
MOST_TOKENS = 320  # of an answer


@dataclass(frozen=True)
class Answer:
    """What a model wrote."""

    split: Split
    example: Example
    text: str
    looped: bool

    @property
    def right(self) -> bool:
        """Whether it is what was asked for."""
        return self.example.is_right(self.text)


def greedy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[str]) -> Iterator[list[int]]:
    """The greedy continuation of every prompt, without its end mark."""
    end = tokenizer.eos_token_id
    tokenizer.padding_side = "left"
    for first in range(0, len(prompts), ROWS):
        batch = tokenizer(prompts[first : first + ROWS], add_special_tokens=False, return_tensors="pt", padding=True)
        written = model.generate(
            batch.input_ids, attention_mask=batch.attention_mask, max_new_tokens=MOST_TOKENS, do_sample=False
        )
        for row in written[:, batch.input_ids.shape[1] :].tolist():
            yield row[: row.index(end)] if end in row else row


def answers(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, split: Split, examples: list[Example]
) -> list[Answer]:
    """An answer to every example, in their order."""
    order = sorted(range(len(examples)), key=lambda i: len(examples[i].answer))  # rows of a batch end together
    prompts = [prompt_of(tokenizer, examples[i]) for i in order]
    written: dict[int, Answer] = {}
    for i, ids in zip(order, greedy(model, tokenizer, prompts), strict=True):
        right = tokenizer.encode(examples[i].answer, add_special_tokens=False)
        text = tokenizer.decode(ids, skip_special_tokens=True)
        written[i] = Answer(split, examples[i], text, is_loop(ids) and not is_loop(right))
    return [written[i] for i in range(len(examples))]


def table(found: list[Answer]) -> dict[str, dict[str, list[int]]]:
    """Per task and split: right answers, loops, all."""
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: {split: [0, 0, 0] for split in HELD_OUT})
    for answer in found:
        cell = counts[answer.example.task][answer.split]
        cell[0] += answer.right
        cell[1] += answer.looped
        cell[2] += 1
    return dict(counts)


def markdown(counts: dict[str, dict[str, list[int]]]) -> str:
    """The table as Markdown; open tasks have no right answers to count."""
    lines = ["| task | held-out fillers | held-out wordings | loops |", "|---|---|---|---|"]
    for task, splits in counts.items():
        cells = ["-" if task == "story" or not n else f"{right / n:.0%}" for right, _, n in splits.values()]
        loops, n = (sum(cell[i] for cell in splits.values()) for i in (1, 2))
        lines.append(f"| {task} | {' | '.join(cells)} | {loops} of {n} |")
    return "\n".join(lines)


def evaluate(folder: Path, each: int, splits: Sequence[Split], tasks: Sequence[str] = ()) -> list[Answer]:
    """All answers of the model in `folder`."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return [a for split in splits for a in answers(model, tokenizer, split, questions(split, each, tasks))]


def main(argv: list[str] | None = None) -> None:
    """Print the table, and on request answers."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo_world.exact",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("--each", type=int, default=50, help="questions per task and split (default: 50)")
    parser.add_argument("--split", choices=HELD_OUT, help="only one of them")
    parser.add_argument("--task", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--show", type=int, default=0, help="print so many answers per task and split")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument("--json", type=Path, help="write the counts there")
    args = parser.parse_args(argv)

    torch.set_num_threads(args.threads)
    found = evaluate(args.model, args.each, [args.split] if args.split else HELD_OUT, args.task)
    shown: dict[tuple[str, str], int] = defaultdict(int)
    for answer in found:
        key = (answer.example.task, answer.split)
        shown[key] += 1
        if shown[key] <= args.show:
            mark = "right" if answer.right else "WRONG"
            asked = answer.example.messages[-2]["content"]
            print(f"--- {key[0]}, {key[1]}, {mark}\n{asked}\n>>> {answer.text}")
            if not answer.right:
                print(f"=== {answer.example.answer}")
    counts = table(found)
    print(markdown(counts))
    if args.json:
        args.json.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
