"""The target's states of all texts on disk, so that every drafter of a target trains on one capture."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from app.reporting.record_file import RecordFile
from app.reporting.report import bar
from app.training.batches import PaddedTexts, layer_outputs, pad_texts
from app.training.examples import Example
from engine.errors import ConfigError
from engine.target_model.whole_texts import WholeTexts

INDEX, FINAL = "texts.jsonl", "final"
MAX_DISK_SHARE = 0.5  # of the free disk space that states may take
MAX_PASS_BYTES = 1 << 28  # of the float32 states of a forward pass, padding included
REMEDY = "remove this folder"


class StoredRows(msgspec.Struct, frozen=True):
    """The rows of a text in the files of states."""

    key: str  # ``Example.tokens_hash``
    first: int
    n: int


class CapturedStates:
    """States of texts in bfloat16, one file for each layer.

    Args:
        folder: has a folder for each set of layers and each identity.
        model: computes the states that are not stored.
        taps: layers whose outputs are stored, in addition to the final norm's.
        identity: decides the states: the target, and how it is loaded.
    """

    def __init__(self, folder: Path, model: WholeTexts, taps: Sequence[int], identity: Mapping[str, Any]) -> None:
        self._model, self._taps, self._width = model, taps, model.shards[-1].spec.hidden_size
        layers = [FINAL, *map(str, taps)]
        identity_hash = hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()[:8]
        self._folder = folder / f"states-{'-'.join(layers)}-{identity_hash}"
        self._files = [self._folder / f"{layer}.bf16" for layer in layers]
        self._settings = {**identity, "layers": layers, "width": self._width}
        self._rows: dict[str, StoredRows] = {}
        self._states: list[Tensor] = []

    def add(self, examples: Sequence[Example]) -> bool:
        """Capture the texts that are not stored; without room for them, print a warning, store nothing, return False.

        A killed capture loses at most one forward pass. Raises ConfigError if a file of states was cut short.
        """
        with RecordFile(self._folder / INDEX, StoredRows, self._settings, REMEDY, waits=True) as index:
            least = sum(one.n for one in index.records) * self._width * 2
            for file in self._files:
                if (size := file.stat().st_size if file.exists() else 0) < least:
                    raise ConfigError(f"{file} has {size} bytes, but {INDEX} next to it lists {least}; {REMEDY}")
            missing = {one.tokens_hash: one for one in examples if one.tokens_hash not in index.by_key}
            n_missing = sum(len(example.tokens) for example in missing.values())
            needed, free = n_missing * len(self._files) * self._width * 2, shutil.disk_usage(self._folder).free
            if needed > MAX_DISK_SHARE * free:
                has = f"{self._folder} has {free / 2**30:.1f} GiB free, of which {MAX_DISK_SHARE:.0%} may be used"
                print(f"spectra: states need {needed / 2**30:.1f} GiB, but {has}", file=sys.stderr)
                return False
            if missing:
                self._write(list(missing.values()), index)
        self._rows = {one.key: one for one in index.records}
        size = sum(one.n for one in index.records) * self._width
        stored = (torch.from_file(str(file), size=size, dtype=torch.bfloat16) for file in self._files)
        self._states = [states.view(-1, self._width) for states in stored]
        return True

    def _write(self, examples: Sequence[Example], index: RecordFile[StoredRows]) -> None:
        first = sum(one.n for one in index.records)
        n_tokens = sum(len(example.tokens) for example in examples)
        with ExitStack() as stack, bar("capture", n_tokens, "token") as shown:
            files = [stack.enter_context(path.open("ab")) for path in self._files]
            for file in files:
                file.truncate(first * self._width * 2)
            for batch in _forward_batches(examples, 4 * self._width * len(files)):
                tokens, lengths = pad_texts(batch)[0], torch.tensor([len(example.tokens) for example in batch])
                is_text = torch.arange(tokens.shape[1]) < lengths[:, None]
                for file, states in zip(files, layer_outputs(self._model, self._taps, tokens), strict=True):
                    rows = states[is_text.to(states.device)].to("cpu", torch.bfloat16)
                    file.write(rows.view(torch.int16).numpy().data)
                    file.flush()
                    os.fsync(file.fileno())
                for example in batch:
                    index.append(StoredRows(example.tokens_hash, first, len(example.tokens)))
                    first += len(example.tokens)
                shown.update(int(lengths.sum()))

    def read(self, examples: Sequence[Example], taps: Sequence[int]) -> PaddedTexts:
        """The texts with float32 states of the final norm and of ``taps``."""
        tokens, weights = pad_texts(examples)
        chosen = [0, *(1 + self._taps.index(tap) for tap in taps)]
        layers = [torch.zeros(*tokens.shape, self._width) for _ in chosen]
        for row, example in enumerate(examples):
            place = self._rows[example.tokens_hash]
            for layer, number in zip(layers, chosen, strict=True):
                layer[row, : place.n] = self._states[number][place.first : place.first + place.n]
        return PaddedTexts.joined(tokens, weights, layers, self._model.shards[-1].device)


def _forward_batches(examples: Sequence[Example], token_bytes: int) -> Iterator[list[Example]]:
    """Texts of similar length together, as many as a forward pass takes, at least one."""
    batch: list[Example] = []
    for example in sorted(examples, key=lambda one: len(one.tokens)):
        if batch and (len(batch) + 1) * len(example.tokens) * token_bytes > MAX_PASS_BYTES:
            yield batch
            batch = []
        batch.append(example)
    if batch:
        yield batch
