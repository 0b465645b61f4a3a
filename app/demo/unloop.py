"""Teach the trained target to leave loops: sequence-level unlikelihood training (Welleck et al., 2020).

  python -m app.demo.unloop --corpus DIR --work DIR --minutes 8

A model this small repeats itself under greedy decoding. So it continues prompts of its own training text greedily;
tokens that complete an n-gram it has already written are made less likely, while ordinary next-token training on
packed text keeps the rest in place. Starts from the checkpoint of `app.demo.train target` and writes the folder anew.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from tqdm import tqdm
from transformers import LlamaForCausalLM

from app.demo.architecture import build, save
from app.demo.data import DOMAINS, load_documents
from app.demo.evaluate import perplexities
from app.demo.losses import logits_of, next_token_loss
from app.demo.packing import Encoded, PackedStream, encode
from app.demo.repeats import is_loop, repeated
from app.demo.tokenizer import END_ID, PAD_ID, SPECIAL_TOKENS

GRAM = 6  # tokens; shorter ones repeat in good text as well
PROMPTS, MAX_PROMPT, NEW_TOKENS = 192, 96, 128  # a round of greedy continuations
UPDATE_ROWS = 48
RATE = 3e-4
PENALTY = 1.0  # weight of unlikelihood beside the next-token loss
ASSISTANT_ID = SPECIAL_TOKENS.index("<|assistant|>")


def draw_prompts(encoded: Encoded, rng: np.random.Generator) -> list[list[int]]:
    """Prompts of all domains: up to the assistant's turn, or the first part of a raw definition."""
    prompts: list[list[int]] = []
    while len(prompts) < PROMPTS:
        documents = encoded[DOMAINS[len(prompts) % len(DOMAINS)]]
        ids = documents[int(rng.integers(len(documents)))].tolist()
        end = ids.index(ASSISTANT_ID) + 1 if ASSISTANT_ID in ids else int(rng.integers(8, 48))
        if end <= MAX_PROMPT and end < len(ids):
            prompts.append(ids[:end])
    return prompts


@torch.no_grad()
def continue_greedily(model: LlamaForCausalLM, prompts: list[list[int]]) -> torch.Tensor:
    """Prompts, padded on the left, and their continuations: int64 [n_prompts, MAX_PROMPT + new tokens]."""
    rows = torch.tensor([[PAD_ID] * (MAX_PROMPT - len(p)) + p for p in prompts])
    with torch.autocast("cpu", torch.bfloat16):
        output: torch.Tensor = model.generate(
            rows,
            attention_mask=(rows != PAD_ID).long(),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=END_ID,
            pad_token_id=PAD_ID,
        )
    return output


def trimmed(row: torch.Tensor) -> tuple[list[int], int]:
    """One output row without padding, and where its continuation begins."""
    start = int((row[:MAX_PROMPT] == PAD_ID).sum())
    ids = row[start:].tolist()
    end = ids.index(PAD_ID) if PAD_ID in ids else len(ids)
    return ids[:end], MAX_PROMPT - start


def penalised(outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Rows that repeat, flushed left, [n_rows, length]; their flagged tokens, bool; share of rows that loop."""
    rows, flags, n_loops = [], [], 0
    for output in outputs:
        ids, begin = trimmed(output)
        written = repeated(ids[begin:], GRAM)
        n_loops += is_loop(ids[begin:])
        if any(written):
            rows.append(torch.tensor(ids))
            flags.append(torch.tensor([False] * begin + written))
    pad = torch.nn.utils.rnn.pad_sequence
    if not rows:
        return torch.empty(0, 0), torch.empty(0, 0), 0.0
    return pad(rows, True, PAD_ID), pad(flags, True), n_loops / len(outputs)


def unlikelihood(model: LlamaForCausalLM, rows: torch.Tensor, flags: torch.Tensor) -> torch.Tensor:
    """Mean of -log(1 - p) over the flagged tokens of `rows` [n_rows, length]."""
    logits = logits_of(model, rows[:, :-1])[flags[:, 1:]]  # [n_flagged, vocabulary]
    chosen = rows[:, 1:][flags[:, 1:]]
    p = logits.softmax(-1).gather(1, chosen[:, None])
    return -torch.log((1 - p).clamp_min(1e-6)).mean()


def unloop(model: LlamaForCausalLM, encoded: Encoded, minutes: float, seed: int) -> float:
    """Train until `minutes` are used up; returns the last round's share of looping continuations."""
    rng, stream = np.random.default_rng(seed), PackedStream(encoded, seed)
    next_token = next_token_loss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
    started, share, looping = time.monotonic(), 0.0, 1.0
    with tqdm(total=100, unit="%") as bar:
        while share < 1:
            outputs = continue_greedily(model, draw_prompts(encoded, rng))
            rows, flags, looping = penalised(outputs)
            for first in range(0, len(rows), UPDATE_ROWS):
                share = (time.monotonic() - started) / (minutes * 60)
                optimizer.param_groups[0]["lr"] = RATE * min(1.0, max(0.0, 1.5 * (1 - share)))
                part = slice(first, first + UPDATE_ROWS)
                penalty = unlikelihood(model, rows[part], flags[part])
                likelihood = next_token(stream.batch(8, 512))
                (likelihood + PENALTY * penalty).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                bar.set_postfix_str(f"loops {looping:.2f} penalty {penalty.item():.3f} loss {likelihood.item():.3f}")
                bar.update(min(100, 100 * share) - bar.n)
            share = (time.monotonic() - started) / (minutes * 60)
    return looping


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m app.demo.unloop",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--corpus", type=Path, required=True, help="folder with the two corpus files")
    parser.add_argument("--work", type=Path, required=True, help="folder with the checkpoint target.pt")
    parser.add_argument("--minutes", type=float, required=True, help="time budget")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent, help="parent of the model folders (default: the package)"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument("--seed", type=int, default=1, help="of prompts and document order (default: 1)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Refine the target and write its folder."""
    args = parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    documents = load_documents(args.corpus)
    tokenizer = Tokenizer.from_file(str(args.out / "target" / "tokenizer.json"))
    model = build("target")
    model.load_state_dict(torch.load(args.work / "target.pt", weights_only=False)["model"])
    training = encode(tokenizer, [d for d in documents if not d.held_out])
    held_out = encode(tokenizer, [d for d in documents if d.held_out])

    looping = unloop(model, training, args.minutes, args.seed)
    save(model, tokenizer, args.out / "target")
    print(json.dumps({"looping": looping, "perplexity": perplexities(model, held_out)}))


if __name__ == "__main__":
    main()
