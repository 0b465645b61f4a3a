"""Train the demo models that ship with the package.

  python -m tools.demo_model.train target  --corpus DIR --work DIR --minutes 60
  python -m tools.demo_model.train drafter --corpus DIR --work DIR --minutes 12

The target comes first: its run also trains the tokenizer, and the drafter is distilled from it. When its time is up,
each command writes a complete Hugging Face folder (bf16) under --out; the last line of stdout is one JSON document with
held-out perplexities. --corpus holds chat_alpacaeval.jsonl and math_gsm8k_train.jsonl; the code comes from the standard
library of the running Python. --work receives checkpoints; a killed run goes on with --resume. Two CPU cores need the
minutes above. Afterwards `tools.demo_model.card` writes the model card.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer

from app.demo.paths import DEMO_TARGET
from tools.demo_model.architecture import SHAPES, build, load, save
from tools.demo_model.data import Document, load_documents
from tools.demo_model.evaluate import perplexities
from tools.demo_model.loop import Run
from tools.demo_model.losses import distillation_loss, next_token_loss
from tools.demo_model.packing import PackedStream, encode
from tools.demo_model.tokenizer import save_tokenizer, train_tokenizer


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo_model.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("role", choices=sorted(SHAPES), help="which of the two models to train")
    parser.add_argument("--corpus", type=Path, required=True, help="folder with the two corpus files")
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints (created)")
    parser.add_argument("--minutes", type=float, required=True, help="time budget; drives the schedule")
    parser.add_argument(
        "--out",
        type=Path,
        default=DEMO_TARGET.parent,
        help="parent of the model folders (default: the package)",
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --work")
    parser.add_argument("--device", default="cpu", help="where to train (default: cpu)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and document order (default: 0)")
    return parser.parse_args(argv)


def command_line(args: argparse.Namespace) -> str:
    """This run's command as the model card shows it, with DIR for the folders."""
    device = "" if args.device == "cpu" else f" --device {args.device}"
    return f"python -m tools.demo_model.train {args.role} --corpus DIR --work DIR --minutes {args.minutes:g}{device}"


def tokenizer_for(role: str, out: Path, training: list[Document]) -> Tokenizer:
    """A new tokenizer for the target; the drafter takes the target's."""
    if role == "target":
        return train_tokenizer(document.text for document in training)
    return Tokenizer.from_file(str(out / "target" / "tokenizer.json"))


def main(argv: list[str] | None = None) -> None:
    """Train one model and write its folder."""
    args = parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.work.mkdir(parents=True, exist_ok=True)

    documents = load_documents(args.corpus)
    training = [d for d in documents if not d.held_out]
    held_out = [d for d in documents if d.held_out]
    tokenizer = tokenizer_for(args.role, args.out, training)

    model = build(SHAPES[args.role]).to(args.device)
    if args.role == "target":
        loss = next_token_loss(model)
    else:
        loss = distillation_loss(model, load(args.out / "target").to(args.device))
    stream = PackedStream(encode(tokenizer, training), args.seed)
    run = Run(model, loss, stream, args.work / f"{args.role}.pt")
    if args.resume:
        run.resume()
    progress = run.train(args.minutes)

    save(model, args.out / args.role)
    save_tokenizer(tokenizer, args.out / args.role)
    record = {"role": args.role, **vars(progress), "commands": [command_line(args)]}
    (args.out / args.role / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    figures = perplexities(model, encode(tokenizer, held_out))
    print(json.dumps({**record, "perplexity": figures}))


if __name__ == "__main__":
    main()
