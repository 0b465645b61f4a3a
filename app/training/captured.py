"""The target's states of all texts on disk, so that every drafter of a target trains on one capture."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from app.reporting.record_file import RecordFile
from app.reporting.report import bar
from app.training.batches import Capture, PaddedTexts, pad_texts
from app.training.examples import Example

INDEX, FINAL = "texts.jsonl", "final"
SHARE = 0.5  # of the free disk space that states may take
AT_ONCE = 16384  # tokens of a forward pass, padding included
REMEDY = "remove this folder"


class CapturedText(msgspec.Struct, frozen=True):
    """The rows of a text in the files of states."""

    text: str  # a hash of its tokens
    first: int
    n: int

    @property
    def key(self) -> str:
        return self.text


class CapturedStates:
    """States of texts in bfloat16, one file for each layer; reads batches as ``Capture`` does.

    Args:
        folder: its states are of one target; texts that it lacks are added.
        capture: computes states; its layers are the ones that are stored.
        identity: what decides the states, of the target and how it is loaded.
    """

    def __init__(self, folder: Path, capture: Capture, identity: Mapping[str, str | None]) -> None:
        self._capture, self._width, self.compute = capture, capture.width, capture.read
        layers = [FINAL, *map(str, capture.taps)]
        self._folder = folder / f"states-{'-'.join(layers)}"
        self._files = [self._folder / f"{layer}.bf16" for layer in layers]
        self._settings = {**identity, "layers": layers, "width": self._width}
        self._places: dict[str, CapturedText] = {}
        self._states: list[Tensor] = []

    def add(self, examples: Sequence[Example]) -> bool:
        """Capture the texts that are not stored; False if the disk lacks room for them, which stores nothing.

        A killed capture loses at most one forward pass.
        """
        with RecordFile(self._folder / INDEX, CapturedText, self._settings, REMEDY) as index:
            missing = {name_text(example): example for example in examples if name_text(example) not in index.by_key}
            n_rows = sum(len(example.tokens) for example in missing.values())
            if n_rows * len(self._files) * self._width * 2 > SHARE * shutil.disk_usage(self._folder).free:
                return False
            if missing:
                self._write(list(missing.values()), index)
        self._places = {one.text: one for one in index.records}
        n_stored = sum(one.n for one in index.records)
        self._states = [
            torch.from_file(str(file), size=n_stored * self._width, dtype=torch.bfloat16).view(-1, self._width)
            for file in self._files
        ]
        return True

    def _write(self, examples: Sequence[Example], index: RecordFile[CapturedText]) -> None:
        first = sum(one.n for one in index.records)
        n_tokens = sum(len(example.tokens) for example in examples)
        with ExitStack() as stack, bar("capture", n_tokens, "token") as shown:
            files = [stack.enter_context(path.open("ab")) for path in self._files]
            for file in files:
                file.truncate(first * self._width * 2)
            for batch in _forward_batches(examples):
                texts = self._capture.read(batch)
                joined = texts.final if texts.tapped is None else torch.cat((texts.final, texts.tapped), dim=-1)
                layers = joined.chunk(len(self._files), dim=-1)
                for file, states in zip(files, layers, strict=True):
                    for row, example in enumerate(batch):
                        rows = states[row, : len(example.tokens)].to("cpu", torch.bfloat16)
                        file.write(rows.contiguous().view(torch.int16).numpy().tobytes())
                    file.flush()
                    os.fsync(file.fileno())
                for example in batch:
                    index.append(CapturedText(name_text(example), first, len(example.tokens)))
                    first += len(example.tokens)
                shown.update(sum(len(example.tokens) for example in batch))

    def read(self, examples: Sequence[Example], taps: Sequence[int]) -> PaddedTexts:
        """The texts with float32 states of the final norm and of ``taps``."""
        tokens, weights = pad_texts(examples)
        chosen = [0, *(1 + self._capture.taps.index(tap) for tap in taps)]
        layers = [torch.zeros(*tokens.shape, self._width) for _ in chosen]
        for row, example in enumerate(examples):
            place = self._places[name_text(example)]
            for layer, number in zip(layers, chosen, strict=True):
                layer[row, : place.n] = self._states[number][place.first : place.first + place.n]
        final, *tapped = (layer.to(self._capture.device) for layer in layers)
        joined = torch.cat(tapped, dim=-1) if tapped else None
        return PaddedTexts(tokens.to(self._capture.device), weights.to(self._capture.device), final, joined)


def name_text(example: Example) -> str:
    """A hash of the text's tokens."""
    return hashlib.sha256(np.asarray(example.tokens, np.int64).tobytes()).hexdigest()[:24]


def _forward_batches(examples: Sequence[Example]) -> Iterator[list[Example]]:
    """Texts of similar length together, as many as a forward pass takes."""
    batch: list[Example] = []
    for example in sorted(examples, key=lambda one: len(one.tokens)):
        if batch and (len(batch) + 1) * len(example.tokens) > AT_ONCE:
            yield batch
            batch = []
        batch.append(example)
    if batch:
        yield batch
