"""What a lookup in an in-memory index costs: microseconds of ``query`` and of ``rest``'s whole draft, on one core.

Conversations whose number divides by 10 are asked about, the others are the corpus. The last line is one JSON document.

    python -m benchmarks.index_query --corpus F.jsonl [--tokenizer DIR] [--limit N]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from app.demo.paths import DEMO_TARGET
from app.retrieval import as_text, index_of
from app.tokenizers import load_tokenizer
from engine.protocol import RequestView, TokenBuffer
from engine.sampling.params import SamplingParams
from retrieval_store.corpus import read_documents
from retrieval_store.index import Limits
from retrieval_store.library import FixedLibrary
from speculators.rest import Rest, RestConfig

FIGURES = ("first p50", "first p99", "best of 3 p50", "best of 3 p99")
EVERY = 7  # tokens between two questions
TIMES = 3  # the first of so many finds cold caches, the best of them an idle machine


def main() -> None:
    """Measure, print a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, default=DEMO_TARGET)
    parser.add_argument("--limit", type=int, help="only the first N documents")
    parser.add_argument("--queries", type=int, default=2000)
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(arguments.tokenizer)
    documents = list(read_documents(arguments.corpus))[: arguments.limit]
    began = time.perf_counter()
    index = index_of([document for i, document in enumerate(documents) if i % 10], tokenizer)
    built = time.perf_counter() - began
    contexts: list[list[int]] = []
    for document in documents[::10]:
        ids = tokenizer.backend_tokenizer.encode(as_text(document, tokenizer), add_special_tokens=False).ids
        contexts += [ids[:end] for end in range(16, len(ids), EVERY)]
    contexts = contexts[: arguments.queries]
    tails = [np.array(ids[-16:], np.int32) for ids in contexts]
    views = [RequestView(0, TokenBuffer(ids), len(ids), SamplingParams(), len(tokenizer)) for ids in contexts]
    library = FixedLibrary(index)
    ours, paper = Rest(library), Rest(library, RestConfig.paper())
    rows = {
        "query, 5000 samples": percentiles([partial(index.query, tail, Limits()) for tail in tails]),
        "query, 200 samples": percentiles([partial(index.query, tail, Limits(samples=200)) for tail in tails]),
        "rest as published": percentiles([partial(paper.propose, view, 64) for view in views]),
        "rest": percentiles([partial(ours.propose, view, 64) for view in views]),
    }
    print(f"{len(index)} tokens, made in {built:.1f} s, {index.nbytes / len(index):.1f} bytes per token")
    print(f"{'microseconds':<22}" + "".join(f"{name:>18}" for name in FIGURES))
    for name, row in rows.items():
        print(f"{name:<22}" + "".join(f"{row[figure]:>18.1f}" for figure in FIGURES))
    print(json.dumps({"benchmark": "index_query", "tokens": len(index), "build_s": round(built, 2), "rows": rows}))


def percentiles(calls: list[Callable[[], object]]) -> dict[str, float]:
    """``FIGURES`` of the calls' times, microseconds."""
    first, best = [], []
    for call in calls:
        seconds = []
        for _ in range(TIMES):
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
        first.append(seconds[0])
        best.append(min(seconds))
    values = [*np.percentile(first, (50, 99)), *np.percentile(best, (50, 99))]
    return {name: round(float(value) * 1e6, 1) for name, value in zip(FIGURES, values, strict=True)}


if __name__ == "__main__":
    main()
