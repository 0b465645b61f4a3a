"""Texts from along the range of perplexities, so that a person sees what was kept and what was not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast

from app.corpus.figures import Choice
from app.corpus.inputs import Input
from retrieval_store.refine.selection import Numbers
from retrieval_store.refine.texts import Texts

EACH = 10  # examples at each place
SHOWN = 400  # characters of a text


def write_examples(
    choice: Choice, texts: Texts, inputs: Sequence[Input], tokenizer: PreTrainedTokenizerFast, path: Path
) -> None:
    """One line of JSON per example: its place, its perplexity, what became of it, where it is from, how it begins."""
    picked = [(place, int(text)) for place, some in _places(choice) for text in some]
    origins = texts.origins([text for _, text in picked])
    with path.open("w", encoding="utf-8") as file:
        for (place, text), origin in zip(picked, origins, strict=True):
            row = choice.rows[text]
            example = {
                "place": place,
                "perplexity": None if choice.perplexities is None else round(float(choice.perplexities[text]), 4),
                "kept": bool(choice.is_kept[text]),
                "tokens": int(row["length"]),
                "input": inputs[int(row["source"])].name,
                "origin": origin,
                "text": tokenizer.decode(texts.tokens(text)[:SHOWN])[:SHOWN],
            }
            file.write(json.dumps(example, ensure_ascii=False) + "\n")


def _places(choice: Choice) -> Iterator[tuple[str, Numbers]]:
    """Examples at both ends and on both sides of the threshold; of an unrefined corpus the first ones."""
    if choice.perplexities is None:
        yield "kept", choice.kept[:EACH]
        return
    order = np.argsort(choice.perplexities, kind="stable")
    order = order[np.isfinite(choice.perplexities[order])]
    kept, others = order[choice.is_kept[order]], order[~choice.is_kept[order]]
    n_low = min(EACH, (len(kept) + 1) // 2)
    yield "lowest", kept[:n_low]
    yield "just kept", kept[n_low:][-EACH:]
    n_near = min(EACH, (len(others) + 1) // 2)
    yield "just dropped", others[:n_near]
    yield "highest", others[n_near:][-EACH:]
