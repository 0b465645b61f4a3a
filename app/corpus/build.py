"""Builds a snapshot: inputs, texts, scores, choice, index, report, publication."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.corpus.figures import Perplexities, TextSelection, dropped, figures, outside
from app.corpus.inputs import CorpusInput, Encoder, read_inputs, write_texts
from app.corpus.progress import BAR, Phases, SnapshotBar
from app.corpus.publication import check_store, publish
from app.corpus.report import write_report
from app.corpus.settings import BuildSettings
from app.corpus.target import CorpusTarget, check_scorer, corpus_target, scorer, scores_key
from app.corpus.work import WorkFolder, key_of
from app.reporting.report import bar
from engine.errors import ConfigError
from retrieval_store.refine.coverage import covering
from retrieval_store.refine.scores import ScoreFile, Scores, score
from retrieval_store.refine.selection import Budget, Numbers, Pick, first, first_of_each, likeliest, shuffled
from retrieval_store.refine.texts import FolderTexts, read_state
from retrieval_store.snapshots.snapshot import Description, Manifest, SnapshotInput
from retrieval_store.snapshots.snapshot_writer import write_snapshot

FORMAT = 1  # of the files in the work folder


def build(settings: BuildSettings) -> dict[str, Any]:
    """Build, report, publish; returns the JSON document of the command.

    Raises:
        ConfigError: a flag is wrong, or an input cannot be read.
        UnsupportedModelError: the model cannot be run.
    """
    target = corpus_target(settings)
    check_scorer(settings, target)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    return _Build(settings, target).run()


class _Build:
    """One build; every step keeps its result on disk for the next step and for a later run."""

    def __init__(self, settings: BuildSettings, target: CorpusTarget) -> None:
        self._settings = settings
        self._target = target
        self._phases = Phases()
        self._before = 0  # tokens scored in earlier runs

    def run(self) -> dict[str, Any]:
        """All phases in order."""
        settings = self._settings
        check_store(settings)
        with self._phases.timed("hashing"):
            inputs = read_inputs(settings.inputs)
        with WorkFolder(settings.work_folder, settings.work is not None) as work:
            with closing(self._texts(inputs, work)) as texts:
                choice = self._choose(texts)
                manifest = self._write(texts, choice, inputs)
                facts = self._facts(manifest)
                print(write_report(settings.report, facts, choice, texts, inputs, self._target.tokenizer), flush=True)
            work.forget()
        publish(settings)
        return self._document(manifest)

    def _texts(self, inputs: Sequence[CorpusInput], work: WorkFolder) -> FolderTexts:
        """Token ids of all inputs, on disk; an earlier run's are used as far as they go."""
        target = self._target
        folder = work.texts(self._texts_key(inputs))
        with self._phases.timed("reading"):
            if not read_state(folder).is_complete:
                encoder = Encoder(target.tokenizer, target.spec.vocab_size, target.longest)
                self._phases.count("reading", write_texts(inputs, encoder, folder))
        if not read_state(folder).tokens:
            raise ConfigError(f"--input {' '.join(one.name for one in inputs)}: the inputs hold no text")
        return FolderTexts(folder)

    def _texts_key(self, inputs: Sequence[CorpusInput]) -> str:
        target = self._target
        template = target.tokenizer.chat_template
        files = [(str(one.path), one.sha256) for one in inputs]
        return key_of(FORMAT, target.tokenizer_hash, template, target.spec.vocab_size, target.longest, files)

    def _choose(self, texts: FolderTexts) -> TextSelection:
        """Decide which texts are kept."""
        settings, rows = self._settings, texts.rows
        is_short, is_repeated = dropped(rows, settings.min_tokens)
        is_outside = outside(texts, ~is_short & ~is_repeated, self._target.spec.vocab_size)
        candidates = np.flatnonzero(~is_short & ~is_repeated & ~is_outside)
        perplexities = None
        if settings.is_refined:
            with self._phases.timed("scoring"):
                scores = self._score(texts, candidates)
            perplexities = np.full(len(rows), np.nan)
            perplexities[candidates] = scores
            order = likeliest(candidates, scores)
        else:
            order = shuffled(candidates, settings.seed)
        kept = self._kept(texts, order, perplexities)
        if not len(kept):
            raise ConfigError(self._nothing(len(candidates), int(is_outside.sum())))
        is_kept = np.zeros(len(rows), np.bool_)
        is_kept[kept] = True
        has_threshold = not settings.is_covering
        return TextSelection(
            rows, is_short, is_repeated, is_outside, perplexities, is_kept, settings.is_per_input, has_threshold
        )

    def _kept(self, texts: FolderTexts, order: Numbers, perplexities: Perplexities | None) -> Numbers:
        """The first texts of ``order``, or those of it that cover most, as many as the budget holds."""
        settings, rows = self._settings, texts.rows

        def covering_most(mine: Numbers, budget: Budget) -> Numbers:
            return covering(texts, mine, budget, None if perplexities is None else 1.0 / perplexities[mine])

        pick: Pick = covering_most if settings.is_covering else partial(first, rows)
        with self._phases.timed("choosing"):
            if settings.is_per_input:
                return first_of_each(rows, order, settings.budget, pick)
            return pick(order, settings.budget)

    def _nothing(self, n_candidates: int, n_outside: int) -> str:
        """Why no text is kept."""
        settings = self._settings
        if not n_candidates and n_outside:
            return f"--model {settings.model}: every text has tokens outside the vocabulary, so none is kept"
        if not n_candidates:
            return f"--min-tokens {settings.min_tokens}: every text is shorter, so none is kept"
        if settings.keep_tokens is not None:
            return f"--keep-tokens {settings.keep_tokens}: the first text to keep has more, so none is kept"
        return f"--model {settings.model}: no text has a finite perplexity, so none is kept; try --dtype float32"

    def _score(self, texts: FolderTexts, candidates: Numbers) -> Scores:
        """Perplexities of the candidates; those of earlier runs are read from disk."""
        settings, target = self._settings, self._target
        file = ScoreFile(texts.folder / f"scores-{key_of(*scores_key(settings, target))}")
        total = int(texts.rows["length"][candidates].sum(dtype=np.int64))
        with bar("scoring", total, "token", **BAR) as shown:

            def progress(tokens: int, before: bool) -> None:
                if before:
                    shown.initial, self._before = tokens, tokens  # the estimate uses this run's speed only
                else:
                    self._phases.count("scoring", tokens)
                shown.update(tokens)

            try:
                return score(texts, candidates, settings.batch, file, lambda: scorer(settings, target), progress)
            finally:
                file.close()

    def _write(self, texts: FolderTexts, choice: TextSelection, inputs: Sequence[CorpusInput]) -> Manifest:
        """Write the snapshot of the kept texts, in the order of reading."""
        settings = self._settings
        out, shown = settings.out, SnapshotBar()
        for left in out.parent.glob(f".{escape(out.name)}.*.partial"):  # of a killed run
            shutil.rmtree(left)
        _bring_back(out)
        with self._phases.timed("snapshot"):
            beside = out.with_name(f".{out.name}.new") if out.exists() else out
            shutil.rmtree(beside, ignore_errors=True)
            manifest = write_snapshot(
                (texts.tokens(int(text)) for text in choice.kept), beside, self._about(choice, inputs), shown
            )
            shown.close()
            if beside is not out:
                _replace(out, beside)
        self._phases.count("snapshot", manifest.tokens)
        return manifest

    def _about(self, choice: TextSelection, inputs: Sequence[CorpusInput]) -> Description:
        target = self._target
        found = figures(choice, inputs)
        is_refined = self._settings.is_refined
        return Description(
            tokenizer_hash=target.tokenizer_hash,
            vocab_size=target.spec.vocab_size,
            model=target.name if is_refined else "",
            model_hash=target.model_hash if is_refined else "",
            sources=tuple(SnapshotInput(one["name"], one["sha256"], one["texts"], one["kept"]) for one in found),
            perplexity=choice.range,
        )

    def _facts(self, manifest: Manifest) -> dict[str, Any]:
        """Facts of the build for the report."""
        settings = self._settings
        return {
            "version": manifest.version,
            "snapshot": str(settings.out),
            "model": self._target.name,
            "model_hash": self._target.model_hash,
            "tokenizer_hash": self._target.tokenizer_hash,
            "refined": settings.is_refined,
            "select": "cover" if settings.is_covering else "likely" if settings.is_refined else "sample",
            "per_input": settings.is_per_input,
            "keep": settings.keep,
            "keep_tokens": settings.keep_tokens,
            "seed": None if settings.is_refined else settings.seed,
            "piece_tokens": self._target.longest,
            "min_tokens": settings.min_tokens,
            "windows": manifest.windows,
            "bytes": manifest.bytes,
            "tokens_scored_before": self._before,
            "phases": self._phases.figures(),
        }

    def _document(self, manifest: Manifest) -> dict[str, Any]:
        settings = self._settings
        return {
            "version": manifest.version,
            "folder": str(settings.out),
            "texts": manifest.texts,
            "tokens": manifest.tokens,
            "windows": manifest.windows,
            "bytes": manifest.bytes,
            "seconds": round(self._phases.total, 3),
            "perplexity": manifest.about.perplexity,
            "report": str(settings.report),
            "published": settings.redis is not None,
        }


def _bring_back(out: Path) -> None:
    """Restore the snapshot that a run killed in ``_replace`` had put aside."""
    aside = out.with_name(f".{out.name}.old")
    if aside.exists() and not out.exists():
        aside.rename(out)
    shutil.rmtree(aside, ignore_errors=True)


def _replace(out: Path, new: Path) -> None:
    """Put folder ``new`` in the place of ``out``; the old content is removed last."""
    old = out.with_name(f".{out.name}.old")
    out.rename(old)
    try:
        new.rename(out)
    except OSError:
        old.rename(out)
        raise
    shutil.rmtree(old)
