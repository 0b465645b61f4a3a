"""Texts and snapshots that tests give to ``--retrieval``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engine.model.identity import tokenizer_hash
from retrieval_store.snapshots.snapshot import Description
from retrieval_store.snapshots.snapshot_writer import write_snapshot

TALK = {"messages": [{"role": "user", "content": "Sing."}, {"role": "assistant", "content": "Snow falls on the town."}]}
SMALL = 20_000  # characters of the built-in corpus in tests
GENERATE = ("--prompt", "The quick brown fox", "--raw", "--max-new-tokens", "60", "--json")


def written(ids: list[int], model: Path, folder: Path) -> Path:
    about = Description(tokenizer_hash=tokenizer_hash(model), vocab_size=320)
    write_snapshot([np.array(ids, np.int32)], folder, about)
    return folder
