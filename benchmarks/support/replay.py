"""A target that answers from recorded texts, in a fraction of the time that the model would take.

Tokens, accepted nodes, and the best ids after the root and after nodes on the text are the model's own. The model never
scored a node that is off the text. Such a node gets the ids after another place in the texts that ends alike: with the
same last two tokens, in a text of the same prompt or else in any text of the same kind; then with the same last token,
likewise; then the mean of all rows. Of several places it is the nearest one. It may lie after the root and so give away
what comes next; with places before the root alone, drafts were up to 17 % shorter than with computed answers. So the
acceptance of methods that learn from such nodes is an estimate (docs/benchmarks.md has its error).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.support.recording import TOP_K, RecordedText
from engine.protocol import Needs
from engine.step import SequenceStart, Step, StepResult, Work, WorkResult
from engine.target_model.info import TargetInfo
from engine.top_ids import TopIds
from engine.tree import ROOT, FloatArray, IntArray, TokenTree
from engine.verify.rules import walk_text

Places = npt.NDArray[np.int64]


class EndIndex:
    """Finds a place in the texts with a given end.

    Args:
        keys: the end of every place, ``[n]``; places of one text are next to each other.
    """

    def __init__(self, keys: Places) -> None:
        self._n = len(keys) + 1
        self._unique, ranks = np.unique(keys, return_inverse=True)
        self._sorted = np.sort(ranks.astype(np.int64) * self._n + np.arange(len(keys)))

    def find(self, keys: Places, near: Places) -> Places:
        """Return for each of ``keys`` the place that is nearest to ``near``, ``[n]``; -1 if there is none."""
        rank = np.minimum(np.searchsorted(self._unique, keys), len(self._unique) - 1)
        first = rank * self._n
        after = np.searchsorted(self._sorted, first + near)
        left = self._sorted[np.maximum(after - 1, 0)] - first
        right = self._sorted[np.minimum(after, len(self._sorted) - 1)] - first
        has_left, has_right = (left >= 0) & (left < near), (right >= near) & (right < self._n)
        found = np.where(has_left & (~has_right | (near - left <= right - near)), left, right)
        return np.where((self._unique[rank] == keys) & (has_left | has_right), found, -1)


class RecordedRows:
    """The rows of all texts of one kind and temperature.

    Args:
        texts: in any order; texts of one prompt may share rows.
        vocab_size: of the model.
    """

    def __init__(self, texts: Sequence[RecordedText], vocab_size: int) -> None:
        self.texts: list[list[int]] = [text.tokens.tolist() for text in texts]
        counts = [len(text.ids) for text in texts]
        self.firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)  # row of each text's first token
        mean = _mean_row(texts, vocab_size)
        self.mean = sum(counts)  # the row that is the mean of all texts'
        self.ids: IntArray = np.concatenate([*(text.ids for text in texts), mean[0]])
        self.logprobs: FloatArray = np.concatenate([*(text.logprobs for text in texts), mean[1]])
        self._n_rows = len(self.ids)
        prompts: dict[bytes, int] = {}
        self.prompts = [prompts.setdefault(text.tokens[: text.n_prompt].tobytes(), len(prompts)) for text in texts]
        tokens = np.concatenate([text.tokens[:n] for text, n in zip(texts, counts, strict=True)]).astype(np.int64)
        previous = np.concatenate([[-1], tokens[:-1]])
        previous[self.firsts[:-1]] = -1
        prompt_of = np.repeat(self.prompts, counts)
        self._vocab = vocab_size + 1
        self._indexes = [EndIndex(keys) for keys in self._keys(prompt_of, previous, tokens)]

    def append(self, ids: IntArray, logprobs: FloatArray) -> int:
        """Add rows ``[n, TOP_K]`` of no text; return the number of the first."""
        first, self._n_rows = self._n_rows, self._n_rows + len(ids)
        if self._n_rows > len(self.ids):  # doubled, so that rows are copied a few times in all
            self.ids = np.resize(self.ids, (2 * self._n_rows, TOP_K))
            self.logprobs = np.resize(self.logprobs, (2 * self._n_rows, TOP_K))
        self.ids[first : self._n_rows], self.logprobs[first : self._n_rows] = ids, logprobs
        return first

    def find(self, text: Places, root: Places, previous: Places, tokens: Places) -> Places:
        """Return the rows for nodes that are off the text, ``[n]``.

        Args:
            text: number of the text that each node's request writes.
            root: row of the node's root.
            previous: token before the node's own.
            tokens: of the nodes.
        """
        found = np.full(len(tokens), -1, np.int64)
        all_keys = self._keys(np.asarray(self.prompts)[text], previous, tokens)
        for index, keys in zip(self._indexes, all_keys, strict=True):
            left = np.flatnonzero(found < 0)
            if not len(left):
                break
            found[left] = index.find(keys[left], root[left])
        return np.where(found < 0, self.mean, found)

    def _keys(self, prompts: Places, previous: Places, tokens: Places) -> list[Places]:
        """Return the keys of the four indexes, best match first."""
        pairs = (previous + 1) * self._vocab + tokens
        square = self._vocab * self._vocab
        return [prompts * square + pairs, pairs, prompts * square + tokens, tokens]


def _mean_row(texts: Sequence[RecordedText], vocab_size: int) -> tuple[IntArray, FloatArray]:
    """Return the likeliest ids over all rows, and the logarithms of their mean probabilities, ``[1, TOP_K]``."""
    sums, n = np.zeros(vocab_size), 0
    for text in texts:
        np.add.at(sums, text.ids, np.exp(text.logprobs))
        n += len(text.ids)
    best = np.argsort(-sums, kind="stable")[:TOP_K]
    return best[None].astype(np.int32), np.log(np.maximum(sums[best] / n, 1e-30))[None].astype(np.float32)


@dataclass(slots=True)
class NodesOffText:
    """Nodes of a step's trees that are off their texts: where their rows go, and their paths."""

    spans: list[tuple[Places, int, int]] = field(default_factory=list)  # rows of a tree, its first node, end
    text: list[int] = field(default_factory=list)  # number of each node's text
    root: list[int] = field(default_factory=list)  # position of its root in the text
    fork: list[int] = field(default_factory=list)  # position of the last token of its path that is on the text
    tail: list[tuple[int, ...]] = field(default_factory=list)  # tokens of its path after that one, its own last


@dataclass(slots=True)
class _RecordedSequence:
    """State of one sequence."""

    text: int
    start: SequenceStart | None = None

    @property
    def needs(self) -> Needs:
        return Needs() if self.start is None else self.start.needs


class ReplayedTarget:
    """Implements ``engine.target_model.info.Target`` from recorded texts.

    Args:
        info: of the model that wrote the texts.
        rows: of the texts of one kind and temperature.
    """

    def __init__(self, info: TargetInfo, rows: RecordedRows) -> None:
        self.info = info
        self._rows = rows
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
        off = NodesOffText()
        places = [self._places(work, self._sequences[work.seq], off) for work in step.work]
        if off.tail:
            found = self._rows_of(off)
            for rows, begin, end in off.spans:
                rows[rows < 0] = found[begin:end]
        results = [
            self._answer(work, self._sequences[work.seq], rows) for work, rows in zip(step.work, places, strict=True)
        ]
        return StepResult(step.step_id, results, time.perf_counter() - began)

    def _rows_of(self, off: NodesOffText) -> Places:
        """Return the rows that stand in for those of nodes off the text, ``[n]``."""
        text, root = np.array(off.text), np.array(off.root)
        before = [self._rows.texts[t][f] for t, f in zip(off.text, off.fork, strict=True)]
        previous = [tail[-2] if len(tail) > 1 else token for tail, token in zip(off.tail, before, strict=True)]
        tokens = [tail[-1] for tail in off.tail]
        return self._rows.find(text, self._rows.firsts[text] + root, np.array(previous), np.array(tokens))

    def _places(self, work: Work, sequence: _RecordedSequence, off: NodesOffText) -> Places | None:
        """Return the rows that a work reads back, in order; nodes off the text have -1 and are added to ``off``."""
        needs, text = sequence.needs, self._rows.texts[sequence.text]
        if not work.reads_back:
            return None
        if work.tree is None:
            if not needs.prompt_top_k:
                return None
            return self._known_rows(sequence.text, np.arange(work.n_cached, work.n_cached + len(work.tokens)))
        if not (nodes := nodes_read(work, needs)):
            return None
        root, depths = work.n_cached, depths_on_text(work.tree, text[work.n_cached + 1 :])
        rows = self._known_rows(sequence.text, root + np.array([0 if i == ROOT else depths[i] for i in nodes]))
        strangers = [i for i in nodes if i != ROOT and not depths[i]]
        if strangers:
            rows[[i != ROOT and not depths[i] for i in nodes]] = -1
            paths = _paths_off_text(work.tree, depths)
            off.spans.append((rows, len(off.tail), len(off.tail) + len(strangers)))
            off.text += [sequence.text] * len(strangers)
            off.root += [root] * len(strangers)
            off.fork += [root + paths[i][0] for i in strangers]
            off.tail += [paths[i][1] for i in strangers]
        return rows

    def _answer(self, work: Work, sequence: _RecordedSequence, places: Places | None) -> WorkResult:
        text, needs = self._rows.texts[sequence.text], sequence.needs
        written = work.n_cached + len(work.tokens)
        assert text[work.n_cached : written] == work.tokens, "the request has left its recorded text"
        if work.tree is None:
            tokens = text[written : written + 1] if work.draw else []
            if places is None:
                return WorkResult(work.seq, tokens)
            ids, logprobs = self._read(places, needs.prompt_top_k, needs.top_logprobs)
            return WorkResult(work.seq, tokens, prompt_top_ids=ids, prompt_top_logprobs=logprobs)
        tokens, accepted = walk_text(work.tree, text[written : written + work.max_new])
        if places is None:
            return WorkResult(work.seq, tokens, accepted)
        ids, logprobs = self._read(places, max(needs.node_top_k, needs.probe_top_k), needs.top_logprobs)
        top = TopIds(np.array(nodes_read(work, needs), np.int32), ids, logprobs)
        return WorkResult(work.seq, tokens, accepted, top_ids=top)

    def _known_rows(self, number: int, places: Places) -> Places:
        """Return the rows after ``places`` of a text; the mean row where none was recorded."""
        first, end = self._rows.firsts[number : number + 2]
        return np.where(first + places < end, first + places, self._rows.mean)

    def _read(self, rows: Places, k: int, with_logprobs: bool) -> tuple[IntArray, FloatArray | None]:
        assert k <= TOP_K, f"a speculator reads {k} ids back; {TOP_K} are recorded"
        return self._rows.ids[rows, :k], self._rows.logprobs[rows, :k] if with_logprobs else None


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
