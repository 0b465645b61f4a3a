"""A target that answers from recorded texts, in a fraction of the time that the model would take.

Tokens, accepted nodes, and the best ids after the root and after nodes on the text were recorded. Nodes off the text
are scored by the model (``PathScorer``), each once for all methods that draft it. So every answer is the model's own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.support.path_scorer import PathScorer, Places, RecordedRows, ScoredPath
from engine.protocol import Needs
from engine.step import SequenceStart, Step, StepResult, Work, WorkResult
from engine.target_model.info import TargetInfo
from engine.top_ids import TopIds
from engine.tree import ROOT, TokenTree
from engine.verify.rules import walk_text


@dataclass(slots=True)
class _NodesOffText:
    """Nodes of a step's trees that are off their texts."""

    spans: list[tuple[Places, int, int]] = field(default_factory=list)  # rows of a tree, its first path, end
    paths: list[ScoredPath] = field(default_factory=list)


@dataclass(slots=True)
class _RecordedSequence:
    """State of one sequence."""

    text: int
    start: SequenceStart | None = None

    @property
    def needs(self) -> Needs:
        return Needs() if self.start is None else self.start.needs


class RecordedTarget:
    """Implements ``engine.target_model.info.Target`` from recorded texts.

    Args:
        info: of the model that wrote the texts.
        rows: of the texts of one kind and temperature.
        scorer: of nodes off these texts.
    """

    def __init__(self, info: TargetInfo, rows: RecordedRows, scorer: PathScorer) -> None:
        self.info = info
        self._rows, self._scorer = rows, scorer
        self._sequences: dict[int, _RecordedSequence] = {}

    def assign(self, seq: int, text: int) -> None:
        """Let sequence ``seq`` write a text; call it before the sequence's first step."""
        self._sequences[seq] = _RecordedSequence(text)

    def step(self, step: Step) -> StepResult:
        """Answer one micro-batch."""
        began = time.perf_counter()
        for seq in step.ends:
            self._sequences.pop(seq, None)
        for start in step.starts:
            self._sequences[start.seq].start = start
        off = _NodesOffText()
        places = [self._places(work, self._sequences[work.seq], off) for work in step.work]
        if off.paths:
            found = self._scorer.find(off.paths)
            for rows, begin, end in off.spans:
                rows[rows < 0] = found[begin:end]
        results = [
            self._answer(work, self._sequences[work.seq], rows) for work, rows in zip(step.work, places, strict=True)
        ]
        return StepResult(step.step_id, results, time.perf_counter() - began)

    def _places(self, work: Work, sequence: _RecordedSequence, off: _NodesOffText) -> Places | None:
        """Return the rows that a work reads back, in order; nodes off the text have -1 and are added to ``off``."""
        needs, text = sequence.needs, self._rows.texts[sequence.text]
        if not work.reads_back:
            return None
        if work.tree is None:
            if not needs.prompt_top_k:
                return None
            return self._rows.known(sequence.text, np.arange(work.n_cached, work.n_cached + len(work.tokens)))
        if not (nodes := nodes_read(work, needs)):
            return None
        root, depths = work.n_cached, depths_on_text(work.tree, text[work.n_cached + 1 :])
        rows = self._rows.known(sequence.text, root + np.array([0 if i == ROOT else depths[i] for i in nodes]))
        strangers = [i for i in nodes if i != ROOT and not depths[i]]
        if strangers:
            rows[[i != ROOT and not depths[i] for i in nodes]] = -1
            paths = _paths_off_text(work.tree, depths)
            off.spans.append((rows, len(off.paths), len(off.paths) + len(strangers)))
            off.paths += [(sequence.text, root + paths[i][0], paths[i][1]) for i in strangers]
        return rows

    def _answer(self, work: Work, sequence: _RecordedSequence, places: Places | None) -> WorkResult:
        text, needs = self._rows.texts[sequence.text], sequence.needs
        written = work.n_cached + len(work.tokens)
        assert text[work.n_cached : written] == work.tokens, "the request has left its recorded text"
        if work.tree is None:
            tokens = text[written : written + 1] if work.draw else []
            if places is None:
                return WorkResult(work.seq, tokens)
            ids, logprobs = self._rows.read(places, needs.prompt_top_k, needs.top_logprobs)
            return WorkResult(work.seq, tokens, prompt_top_ids=ids, prompt_top_logprobs=logprobs)
        tokens, accepted = walk_text(work.tree, text[written : written + work.max_new])
        if places is None:
            return WorkResult(work.seq, tokens, accepted)
        ids, logprobs = self._rows.read(places, max(needs.node_top_k, needs.probe_top_k), needs.top_logprobs)
        top = TopIds(np.array(nodes_read(work, needs), np.int32), ids, logprobs)
        return WorkResult(work.seq, tokens, accepted, top_ids=top)


def nodes_read(work: Work, needs: Needs) -> Sequence[int]:
    """Return the nodes after which a step reads ids back, ascending, as a real stage does."""
    assert work.tree is not None
    if needs.node_top_k:
        return range(ROOT, len(work.tree))
    return sorted(work.tree.probe_ends) if needs.probe_top_k else ()


def depths_on_text(tree: TokenTree, future: Sequence[int]) -> list[int]:
    """Return the depth of every node whose path equals the text after the root, and 0 of the others."""
    depths: list[int] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        above = 0 if parent == ROOT else depths[parent]
        is_on = (parent == ROOT or above) and above < len(future) and future[above] == token
        depths.append(above + 1 if is_on else 0)
    return depths


def _paths_off_text(tree: TokenTree, depths: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Return for every node the depth of the last token of its path that is on the text, and the tokens after it."""
    paths: list[tuple[int, tuple[int, ...]]] = []
    for node, parent in enumerate(tree.parents):
        depth, tail = (0, ()) if parent == ROOT else paths[parent]
        paths.append((depths[node], ()) if depths[node] else (depth, (*tail, tree.tokens[node])))
    return paths
