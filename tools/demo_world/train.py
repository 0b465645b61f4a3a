"""Train the demo models on the small world, which is generated while they learn.

  python -m tools.demo_world.train target  --work DIR --out DIR --tokens 30e6
  python -m tools.demo_world.train drafter --work DIR --out DIR --tokens 12e6

The target comes first: its run also learns the tokenizer, and the drafter is distilled from it. The budget is counted
in tokens, so a run may be paused, and killed and taken up with --resume; another --tokens then moves the end. When they
are used up, a complete Hugging Face folder (bf16) lies under --out. Afterwards `tools.demo_world.exact`
evaluates it and `tools.demo_world.card` writes its card. --snapshot writes the folder of a checkpoint as it is. --start
begins with the weights and the tokenizer of a finished folder, such as the one that ships, on a budget of its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from tools.demo_model.architecture import Shape, build, load, save
from tools.demo_model.loop import Run
from tools.demo_model.losses import distillation_loss, next_token_loss
from tools.demo_world.initial import lay_out_copying
from tools.demo_world.mix import conversations
from tools.demo_world.stream import WorldStream
from tools.demo_world.tokenizer import plain_text, save_tokenizer, train_tokenizer, with_template

SHAPES = {
    "target": Shape(layers=6, hidden=256, heads=4, ffn=512, kv_heads=2, head_dim=64),
    "drafter": Shape(layers=3, hidden=128, heads=4, ffn=384, kv_heads=2, head_dim=32),
}
PROMPT_WEIGHT = 0.1  # what is told and asked is random; a model has to answer it, not to guess it
RATE = 0.5  # of learning, times that of tools.demo_model
# Conversations have 116 tokens on average, and 85 % of all tokens are in those of at most 256.
ROWS = ((0.0, 256), (0.93, 512))
TOKENIZER_FROM = 20_000  # conversations


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo_world.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("role", choices=sorted(SHAPES), help="which of the two models to train")
    parser.add_argument("--work", type=Path, required=True, help="folder for tokenizer and checkpoints (created)")
    parser.add_argument("--out", type=Path, required=True, help="parent of the model folders target and drafter")
    parser.add_argument("--tokens", type=float, required=True, help="budget; drives the schedule")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --work")
    parser.add_argument("--start", type=Path, help="folder of a model to begin with, where there is no checkpoint yet")
    parser.add_argument("--snapshot", action="store_true", help="write the checkpoint's folder and do not train")
    parser.add_argument("--device", default="cpu", help="where to train (default: cpu)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of weights and conversations (default: 0); with --start another than before",
    )
    return parser.parse_args(argv)


def tokenizer_in(work: Path, seed: int, start: Path | None = None) -> Tokenizer:
    """The one of an earlier run, or of the model to begin with, or a new one."""
    path = work / "tokenizer.json"
    if not path.exists() and start is not None:
        shutil.copyfile(start / "tokenizer.json", path)
    elif not path.exists():
        train_tokenizer(plain_text(e) for e in islice(conversations(seed), TOKENIZER_FROM)).save(str(path))
    return Tokenizer.from_file(str(path))


def model_to_train(shape: Shape, start: Path | None = None) -> LlamaForCausalLM:
    """A new model with the copying circuit, which does not train, or the one of a finished folder."""
    model = build(shape)
    lay_out_copying(model)
    model.model.layers[0].mlp.forward = torch.zeros_like  # adds nothing, and takes a tenth of the time
    if start is not None:
        model.load_state_dict(load(start).state_dict())
    return model


def main(argv: list[str] | None = None) -> None:
    """Train one model and write its folder."""
    args = parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_in(args.work, args.seed, args.start)
    model = model_to_train(SHAPES[args.role], args.start).to(args.device)
    if args.device == "cpu":
        model.set_attn_implementation("eager")  # compiled, 1.25 times a CPU's flash attention in whole steps
    if args.role == "target" or args.snapshot:
        loss = next_token_loss(model, PROMPT_WEIGHT)
    else:
        loss = distillation_loss(model, load(args.out / "target").to(args.device), PROMPT_WEIGHT)
    stream = WorldStream(with_template(tokenizer), args.seed)
    run = Run(model, loss, stream, args.work / f"{args.role}.pt", rate=RATE, rows=ROWS)
    if args.resume or args.snapshot:
        run.resume()
    progress = run.progress if args.snapshot else run.train(tokens=int(args.tokens))

    folder = args.out / args.role
    save(model, folder)
    save_tokenizer(tokenizer, folder)
    record = {"role": args.role, **vars(progress), "parameters": sum(p.numel() for p in model.parameters())}
    (folder / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
