"""Read a finished demo model from its folder and print what its card says: one JSON line.

  python -m tools.demo_model.report app/demo/target --corpus DIR [--prompts DIR] [--show]

--corpus gives held-out perplexities. --prompts, a folder with spec_bench.jsonl, gsm8k.jsonl and humaneval.jsonl, gives
the number of looping continuations (some 8-gram three times within 128 tokens); --show prints those texts as well.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.demo_model.data import load_documents
from tools.demo_model.evaluate import perplexities
from tools.demo_model.packing import encode

PER_FILE = 12  # prompts, evenly spaced
NEW_TOKENS = 128
LOOP_GRAM, LOOP_TIMES = 8, 3  # a text loops when some 8-gram occurs three times
CHAT_FILES = {"chat": "spec_bench.jsonl", "math": "gsm8k.jsonl"}
RAW_FILES = {"code": "humaneval.jsonl"}
SPEC_BENCH_CHAT = {"writing", "roleplay", "reasoning", "stem", "humanities", "extraction"}
DECODINGS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "temperature 0.8": {"do_sample": True, "temperature": 0.8, "top_k": 0},
}


def read_prompts(path: Path) -> list[str]:
    """First turns of evenly spaced questions; of Spec-Bench only the MT-Bench part."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.name == CHAT_FILES["chat"]:
        rows = [row for row in rows if row["category"] in SPEC_BENCH_CHAT]
    return [row["turns"][0] for row in rows[:: max(1, len(rows) // PER_FILE)][:PER_FILE]]


def encode_prompts(tokenizer: PreTrainedTokenizerFast, folder: Path) -> dict[str, list[torch.Tensor]]:
    """Prompt ids, int64 [1, n], by domain: chat and math through the template, code raw."""
    encoded: dict[str, list[torch.Tensor]] = {}
    for domain, name in {**CHAT_FILES, **RAW_FILES}.items():
        texts = read_prompts(folder / name)
        if domain in CHAT_FILES:
            chats = [[{"role": "user", "content": text}] for text in texts]
            texts = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in chats]
        else:
            # A newline and the indentation after it are one token: training text never ends between them.
            texts = [f"{tokenizer.bos_token}{text.rstrip()}" for text in texts]
        encoded[domain] = [tokenizer(t, add_special_tokens=False, return_tensors="pt").input_ids for t in texts]
    return encoded


def continuations(model: LlamaForCausalLM, prompts: list[torch.Tensor], decoding: str) -> list[list[int]]:
    """The new tokens of every prompt."""
    outputs = []
    for ids in prompts:
        torch.manual_seed(0)
        mask = torch.ones_like(ids)
        full = model.generate(ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, **DECODINGS[decoding])
        outputs.append(full[0, ids.shape[1] :].tolist())
    return outputs


def is_loop(ids: Sequence[int]) -> bool:
    """Whether some 8-gram occurs at least three times."""
    grams = (tuple(ids[i : i + LOOP_GRAM]) for i in range(len(ids) - LOOP_GRAM + 1))
    return max(Counter(grams).values(), default=0) >= LOOP_TIMES


def count_loops(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path, show: bool
) -> dict[str, dict[str, int]]:
    """Looping continuations by decoding and domain, out of PER_FILE each."""
    prompts = encode_prompts(tokenizer, folder)
    counts: dict[str, dict[str, int]] = {}
    for decoding in DECODINGS:
        written = {domain: continuations(model, ids, decoding) for domain, ids in prompts.items()}
        counts[decoding] = {domain: sum(map(is_loop, texts)) for domain, texts in written.items()}
        if show:
            for domain, texts in written.items():
                for ids, new in zip(prompts[domain], texts, strict=True):
                    print(f"--- {decoding}, {domain}: {tokenizer.decode(ids[0])[-200:]!r}\n{tokenizer.decode(new)}")
    return counts


def held_out_perplexities(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, corpus: Path
) -> dict[str, float]:
    """Per domain and overall, with the model's own tokenizer."""
    documents = [d for d in load_documents(corpus) if d.held_out]
    return perplexities(model, encode(tokenizer.backend_tokenizer, documents))


def measure(folder: Path, corpus: Path | None, prompts: Path | None, show: bool) -> dict[str, Any]:
    """Parameters and bytes, and with their data perplexity and loops."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    report: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": sum(f.stat().st_size for f in folder.iterdir()),
    }
    if corpus:
        report["perplexity"] = held_out_perplexities(model, tokenizer, corpus)
    if prompts:
        report["loops"] = count_loops(model, tokenizer, prompts, show)
    return report


def main(argv: list[str] | None = None) -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo_model.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("--corpus", type=Path, help="folder with the two corpus files")
    parser.add_argument("--prompts", type=Path, help="folder with the three prompt files")
    parser.add_argument("--show", action="store_true", help="print the continuations")
    args = parser.parse_args(argv)

    print(json.dumps(measure(args.model, args.corpus, args.prompts, args.show)))


if __name__ == "__main__":
    main()
