"""Write a demo model's card, README.md in its folder, from its own measurements.

  python -m tools.demo_model.card target --corpus DIR --prompts DIR
  python -m tools.demo_model.card drafter --corpus DIR --prompts DIR

Reads training.json, which training left in the folder, and measures the shipped weights again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from app.demo.paths import DEMO_TARGET
from tools.demo_model.report import PER_FILE, measure

TEXT = """---
license: other
language: en
---
# spectra-serve demo {role}

{purpose} It is a demonstration, often incoherent and **not** a source of facts, arithmetic or working code.

| | |
|---|---|
| architecture | Llama, {parameters:,} parameters, bf16, {bytes:,} bytes on disk with its tokenizer |
| tokenizer | byte-level BPE, 4096 tokens, digits one by one; the same for target and drafter |
| trained on | {tokens:,} tokens in {seconds:.0f} s, two shared CPU cores |
| rows | 512 tokens, 2048 in the last part of the run |

Held-out perplexity per token (2 % of the instructions, never trained on), shipped weights:

| chat | math | code | overall |
|---|---|---|---|
| {chat:.2f} | {math:.2f} | {code:.2f} | {overall:.2f} |

Continuations of {n_prompts} prompts (Spec-Bench chat, GSM8K test, HumanEval) that repeat an 8-gram three times within
128 tokens: {greedy} under greedy decoding, {sampled} at temperature 0.8.

## Data
| domain | text | licence |
|---|---|---|
| chat | AlpacaEval answers of Mixtral-8x7B-Instruct-v0.1, Mistral-7B-Instruct-v0.2 and v0.3 | Apache-2.0 |
| chat | AlpacaEval answers of zephyr-7b-beta and phi-2-sft | MIT |
| math | GSM8K, train split | MIT |
| code | documented functions and classes of Python's standard library | PSF-2.0 |

## Commands
```
{commands}
```
{notes}"""
PURPOSES = {
    "target": "A small language model that ships inside spectra-serve, so that the server runs without a download.",
    "drafter": "A draft model for the demo target, distilled from it; same tokenizer.",
}


def write_card(folder: Path, report: dict[str, Any]) -> None:
    """Write README.md into `folder` from `report` (see tools.demo_model.report) and the folder's training.json."""
    training = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    loops = report["loops"]
    card = TEXT.format(
        role=training["role"],
        purpose=PURPOSES[training["role"]],
        parameters=report["parameters"],
        bytes=report["bytes"],
        n_prompts=PER_FILE * len(loops["greedy"]),
        greedy=sum(loops["greedy"].values()),
        sampled=sum(loops["temperature 0.8"].values()),
        tokens=training["tokens"],
        seconds=training["seconds"],
        commands="\n".join(training["commands"]),
        notes="\n".join(training.get("notes", [])),
        **report["perplexity"],
    )
    (folder / "README.md").write_text(card.rstrip() + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo_model.card",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("role", choices=sorted(PURPOSES), help="which model")
    parser.add_argument("--corpus", type=Path, required=True, help="folder with the two corpus files")
    parser.add_argument("--prompts", type=Path, required=True, help="folder with the three prompt files")
    parser.add_argument(
        "--out", type=Path, default=DEMO_TARGET.parent, help="parent of the model folders (default: the package)"
    )
    args = parser.parse_args(argv)
    folder = args.out / args.role
    report = measure(folder, args.corpus, args.prompts, show=False)
    write_card(folder, report)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
