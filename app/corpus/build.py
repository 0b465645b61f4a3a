"""Builds a snapshot: inputs, texts, scores, selection, index, report, publication."""

from __future__ import annotations

import argparse
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from app.corpus.folders import TEXTS, hash_values, locked, remove_work, replace_folder, restore_folder
from app.corpus.inputs import BAR, CorpusInput, Encoder, read_inputs, write_texts
from app.corpus.publication import opened_store, publish_snapshot
from app.corpus.report import count_inputs, write_report
from app.corpus.selection import FLAWS, Perplexities, TextSelection, choose_texts, find_flaws
from app.corpus.settings import COVER, PIECE
from app.inputs.models import model_path, read_checkpoint
from app.reporting.report import bar
from engine.errors import ConfigError, SpectraError
from engine.model.identity import model_hash, tokenizer_hash
from engine.model.resolve import is_local
from engine.model.spec import ModelSpec
from engine.target_model.numerics import resolve_dtype
from engine.target_model.whole_texts import Perplexity
from retrieval_store.refine.scores import ScoreFile, score
from retrieval_store.refine.selection import Numbers
from retrieval_store.refine.texts import FolderTexts, read_state
from retrieval_store.snapshots.snapshot import Description, Manifest, SnapshotInput
from retrieval_store.snapshots.snapshot_writer import write_snapshot
from retrieval_store.stores.base import Store

FORMAT = 1  # of the files in the work folder


@dataclass(frozen=True, slots=True)
class CorpusTarget:
    """The target of a corpus, without weights."""

    name: str  # without the path of its folder
    path: Path
    spec: ModelSpec
    tokenizer: PreTrainedTokenizerFast
    tokenizer_hash: str
    model_hash: str
    longest: int  # tokens of a piece
    start: int | None  # token before every text
    devices: list[torch.device]
    dtype: torch.dtype

    def scorer(self) -> Perplexity:
        return Perplexity.load(self.path, self.devices, self.dtype, self.longest, self.start)


def corpus_target(arguments: argparse.Namespace) -> CorpusTarget:
    """Read everything except the weights; raises ConfigError if the model and the flags do not fit each other."""
    try:
        path = model_path(arguments.model)
        spec, tokenizer = read_checkpoint(path)
        if not (path / "tokenizer.json").is_file():
            raise ConfigError(f"{path} has no tokenizer.json")
    except SpectraError as error:
        raise ConfigError(f"--model {arguments.model}: {error}") from error
    most = spec.max_positions - 1  # one position for the start token
    longest = arguments.piece_tokens or min(PIECE, most)
    if longest > most:
        raise ConfigError(f"--piece-tokens is {longest}; {arguments.model} reads at most {most} tokens")
    name = Path(arguments.model).expanduser().resolve().name if is_local(arguments.model) else arguments.model
    dtype = resolve_dtype(arguments.dtype, spec, arguments.devices[0])
    devices = [torch.device(one) for one in arguments.devices]
    if len(devices) > spec.n_layers:
        raise ConfigError(f"--device is {arguments.device}, but {name} has only {spec.n_layers} layers")
    for device in devices:
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(f"--device is {arguments.device}, but torch sees no {device} here")
    hashes, start = (tokenizer_hash(path), model_hash(path)), tokenizer.bos_token_id
    return CorpusTarget(name, path, spec, tokenizer, *hashes, longest, start, devices, dtype)


class Phases:
    """Seconds and tokens of each phase, in order; earlier runs do not count."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.tokens: Counter[str] = Counter()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - began

    def figures(self) -> dict[str, dict[str, float]]:
        found = {name: {"seconds": round(seconds, 3)} for name, seconds in self.seconds.items()}
        for name, tokens in self.tokens.items():
            rate = tokens / self.seconds[name] if self.seconds[name] else 0.0
            found[name] |= {"tokens": tokens, "tokens_per_second": round(rate, 1)}
        return found


class SnapshotBuild:
    """One build with flags that ``check_build`` has checked; each step keeps its result on disk for a later run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments, self._target = arguments, corpus_target(arguments)
        self._phases = Phases()
        self._scored_before = 0  # tokens scored in earlier runs

    def run(self) -> dict[str, Any]:
        """Build, report, publish; returns the JSON document of the command. Raises SpectraError."""
        arguments = self._arguments
        if arguments.threads is not None:
            torch.set_num_threads(arguments.threads)
        if arguments.redis is not None:  # a wrong address is found before hours of scoring
            with self._opened_store() as store:
                store.current()
        with self._phases.timed("hashing"):
            inputs = read_inputs(arguments.inputs)
        with locked(arguments.work):
            with closing(self._read_texts(inputs)) as texts:
                selection = self._select(texts)
                counts = count_inputs(selection, inputs)
                manifest = self._write_snapshot(texts, selection, counts)
                facts, tokenizer = self._facts(manifest), self._target.tokenizer
                print(write_report(arguments.report, facts, selection, texts, counts, tokenizer), flush=True)
            if not arguments.keeps_work:
                remove_work(arguments.work)
        if arguments.redis is not None:
            with self._opened_store() as store:
                publish_snapshot(store, arguments.out)
        return {
            "version": manifest.version,
            "folder": str(arguments.out),
            "texts": manifest.texts,
            "tokens": manifest.tokens,
            "windows": manifest.windows,
            "bytes": manifest.bytes,
            "seconds": round(sum(self._phases.seconds.values()), 3),
            "perplexity": manifest.about.perplexity,
            "report": str(arguments.report),
            "published": arguments.redis is not None,
        }

    def _opened_store(self) -> AbstractContextManager[Store]:
        return opened_store(self._arguments.redis, self._arguments.namespace, "--redis")

    def _read_texts(self, inputs: Sequence[CorpusInput]) -> FolderTexts:
        """Token ids of all inputs, on disk; continues after the texts of an earlier run."""
        target, files = self._target, [(str(one.path), one.sha256) for one in inputs]
        template = target.tokenizer.chat_template
        key = hash_values(FORMAT, target.tokenizer_hash, template, target.spec.vocab_size, target.longest, files)
        folder = self._arguments.work / f"{TEXTS}{key}"
        with self._phases.timed("reading"):
            if not read_state(folder).is_complete:
                encoder = Encoder(target.tokenizer, target.spec.vocab_size, target.longest)
                self._phases.tokens["reading"] = write_texts(inputs, encoder, folder)
        if not read_state(folder).tokens:
            raise ConfigError(f"--input {' '.join(one.name for one in inputs)}: the inputs hold no text")
        return FolderTexts(folder)

    def _select(self, texts: FolderTexts) -> TextSelection:
        arguments, rows = self._arguments, texts.rows
        flaws = find_flaws(texts, arguments.min_tokens, self._target.spec.vocab_size)
        candidates = np.flatnonzero(flaws == 0)
        perplexities = None
        if not arguments.unrefined:
            perplexities = np.full(len(rows), np.nan)
            perplexities[candidates] = self._score(texts, candidates)
        with self._phases.timed("choosing"):
            kept = choose_texts(texts, candidates, perplexities, arguments)
        if not len(kept):
            why = f"--model {arguments.model}: no text has a finite perplexity; try --dtype float32"
            if flaws.all() and FLAWS.index("outside_vocabulary") + 1 in flaws:
                why = f"--model {arguments.model}: every text has tokens outside the vocabulary, none is kept"
            elif flaws.all():
                why = f"--min-tokens {arguments.min_tokens}: every text is shorter; use a lower value"
            elif arguments.keep_tokens is not None:
                why = f"--keep-tokens {arguments.keep_tokens}: the first text has more; use a higher value"
            raise ConfigError(why)
        is_kept = np.zeros(len(rows), np.bool_)
        is_kept[kept] = True
        per_input, has_threshold = arguments.per_input, arguments.select != COVER
        return TextSelection(rows, flaws, perplexities, is_kept, per_input, has_threshold)

    def _score(self, texts: FolderTexts, candidates: Numbers) -> Perplexities:
        """Perplexities of the candidates; those of earlier runs are read from disk."""
        arguments, target = self._arguments, self._target
        batch, kinds = arguments.batch_tokens, [device.type for device in target.devices]
        key = hash_values(target.model_hash, target.start, str(target.dtype), kinds, batch, arguments.min_tokens)
        total = int(texts.rows["length"][candidates].sum(dtype=np.int64))
        with (
            self._phases.timed("scoring"),
            bar("scoring", total, "token", **BAR) as shown,
            closing(ScoreFile(texts.folder / f"scores-{key}")) as file,
        ):

            def progress(tokens: int, before: bool) -> None:
                if before:
                    shown.initial, self._scored_before = tokens, tokens  # the estimate uses this run's speed only
                else:
                    self._phases.tokens["scoring"] += tokens
                shown.update(tokens)

            return score(texts, candidates, batch, file, target.scorer, progress)

    def _write_snapshot(
        self, texts: FolderTexts, selection: TextSelection, counts: Sequence[dict[str, Any]]
    ) -> Manifest:
        target, is_refined, out = self._target, not self._arguments.unrefined, self._arguments.out
        about = Description(
            tokenizer_hash=target.tokenizer_hash,
            vocab_size=target.spec.vocab_size,
            model=target.name if is_refined else "",
            model_hash=target.model_hash if is_refined else "",
            sources=tuple(SnapshotInput(one["name"], one["sha256"], one["texts"], one["kept"]) for one in counts),
            perplexity=selection.range,
        )
        for left in out.parent.glob(f".{escape(out.name)}.*.partial"):  # of a killed run
            shutil.rmtree(left)
        restore_folder(out)
        with self._phases.timed("snapshot"), bar("snapshot", None, "", **BAR) as shown:
            new = out.with_name(f".{out.name}.new") if out.exists() else out
            shutil.rmtree(new, ignore_errors=True)
            documents = (texts.tokens(int(text)) for text in selection.kept)
            manifest = write_snapshot(documents, new, about, partial(show_phase, shown))
            if new is not out:
                replace_folder(out, new)
        self._phases.tokens["snapshot"] = manifest.tokens
        return manifest

    def _facts(self, manifest: Manifest) -> dict[str, Any]:
        arguments, target = self._arguments, self._target
        flags = ("select", "per_input", "keep", "keep_tokens", "min_tokens")
        return {
            "version": manifest.version,
            "snapshot": str(arguments.out),
            "model": target.name,
            "model_hash": target.model_hash,
            "tokenizer_hash": target.tokenizer_hash,
            "refined": not arguments.unrefined,
            **{name: getattr(arguments, name) for name in flags},
            "seed": arguments.seed if arguments.unrefined else None,
            "piece_tokens": target.longest,
            "windows": manifest.windows,
            "bytes": manifest.bytes,
            "tokens_scored_before": self._scored_before,
            "phases": self._phases.figures(),
        }


def show_phase(shown: Any, phase: str, done: int, total: int) -> None:
    """Show ``done`` of ``total`` (0: unknown) of a phase of ``write_snapshot`` on a bar, which starts anew with it."""
    if shown.desc != f"snapshot: {phase}: ":
        shown.set_description(f"snapshot: {phase}")
        shown.reset(total or None)
    shown.update(done - shown.n)
