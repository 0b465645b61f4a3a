"""Scores drafted nodes off recorded texts with the model, each once for all methods and settings that are compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.support.recording import TOP_K, RecordedText
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.step import SequenceStart, Step, Work, WorkResult
from engine.target_model.info import Target
from engine.tree import ROOT, FloatArray, IntArray, TokenTree

MOST_NODES = 512  # nodes of a step, or tokens of a chunk; more would need much memory
ROOM = 192  # slots of a text's cache in addition to its tokens, for trees
_NEEDS = Needs(probe_top_k=TOP_K, top_logprobs=True)
Places: TypeAlias = npt.NDArray[np.int64]
ScoredPath: TypeAlias = tuple[int, int, tuple[int, ...]]  # text, position of the last token on it, tokens after that


class RecordedRows:
    """The best ids after every token of all texts of one kind and temperature, and after scored paths.

    Args:
        texts: in any order.
    """

    def __init__(self, texts: Sequence[RecordedText]) -> None:
        self.texts: list[list[int]] = [text.tokens.tolist() for text in texts]
        self._firsts = np.cumsum([0, *(len(text.ids) for text in texts)])  # row of each text's first token
        self._n_rows = int(self._firsts[-1])
        self._ids: IntArray = np.concatenate([text.ids for text in texts])
        self._logprobs: FloatArray = np.concatenate([text.logprobs for text in texts])

    def append(self, ids: IntArray, logprobs: FloatArray) -> int:
        """Add rows ``[n, TOP_K]`` of no text; return the number of the first."""
        first, self._n_rows = self._n_rows, self._n_rows + len(ids)
        if self._n_rows > len(self._ids):  # doubled, so that rows are copied a few times in all
            self._ids = np.resize(self._ids, (2 * self._n_rows, TOP_K))
            self._logprobs = np.resize(self._logprobs, (2 * self._n_rows, TOP_K))
        self._ids[first : self._n_rows], self._logprobs[first : self._n_rows] = ids, logprobs
        return first

    def known(self, text: int, places: Places) -> Places:
        """Return the rows after ``places`` of a text. The last tokens have none; their answers are never read."""
        first, end = self._firsts[text : text + 2].tolist()
        found: Places = np.minimum(first + places, end - 1)
        return found

    def read(self, rows: Places, k: int, with_logprobs: bool) -> tuple[IntArray, FloatArray | None]:
        """Return ids ``[n, k]`` int32 and, if requested, log-probabilities ``[n, k]`` fp32."""
        assert k <= TOP_K, f"a speculator reads {k} ids back; {TOP_K} are recorded"
        return self._ids[rows, :k], self._logprobs[rows, :k] if with_logprobs else None


def blocks_of(texts: Sequence[Sequence[int]], block_size: int) -> list[int]:
    """Return how many blocks the scorer needs for each text."""
    return [-(-(len(text) + ROOM) // block_size) for text in texts]


@dataclass(slots=True)
class _Tree:
    """Nodes to score after one root, merged where their paths begin alike."""

    text: int
    root: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scored: dict[int, ScoredPath] = field(default_factory=dict)  # node -> its path
    children: dict[tuple[int, int], int] = field(default_factory=dict)  # parent, token -> node

    def add(self, path: Sequence[int], key: ScoredPath) -> None:
        """Add a path of tokens from the root, whose last node is to be scored."""
        node = ROOT
        for token in path:
            child = self.children.setdefault((node, token), len(self.tokens))
            if child == len(self.tokens):
                self.tokens.append(token)
                self.parents.append(node)
            node = child
        self.scored[node] = key


class PathScorer:
    """Lets a model score paths off recorded texts, each once.

    Args:
        load: makes the target, when it is first needed, with a cache for ``blocks_of`` the texts.
        rows: of the texts; rows of scored paths are appended.
        block_size: of the target's cache.
    """

    def __init__(self, load: Callable[[], Target], rows: RecordedRows, block_size: int) -> None:
        self._load, self._rows = load, rows
        self._known: dict[ScoredPath, int] = {}  # path -> its row
        self._cached: dict[int, int] = {}  # text -> first tokens of it that are in the target's cache
        counts = blocks_of(rows.texts, block_size)
        ends = np.cumsum(counts).tolist()
        self._blocks = [[*range(end - count, end)] for end, count in zip(ends, counts, strict=True)]
        self._n_steps = 0

    @cached_property
    def _target(self) -> Target:
        return self._load()

    def find(self, keys: Sequence[ScoredPath]) -> Places:
        """Return the rows of paths off their texts, ``[n]``, after scoring those that are new."""
        missing: dict[int, list[ScoredPath]] = defaultdict(list)
        for key in dict.fromkeys(keys):
            if key not in self._known:
                missing[key[0]].append(key)
        if missing:
            trees = [self._tree(text, paths) for text, paths in missing.items()]
            self._fill({tree.text: tree.root for tree in trees})
            for some in _batches(trees):
                self._score(some)
        return np.array([self._known[key] for key in keys])

    def _tree(self, number: int, paths: Sequence[ScoredPath]) -> _Tree:
        tree, text = _Tree(number, min(fork for _, fork, _ in paths)), self._rows.texts[number]
        for path in paths:
            _, fork, tail = path
            tree.add([*text[tree.root + 1 : fork + 1], *tail], path)
        return tree

    def _fill(self, roots: Mapping[int, int]) -> None:
        """Let the target read the tokens before each root; ``roots`` maps the number of a text to a position in it."""
        starts: list[SequenceStart] = []
        blocks: dict[int, list[int]] = {}
        for text, root in roots.items():
            if text not in self._cached:
                assert root, "the first token of a text is no root: a prompt has two tokens at least"
                n_prompt = len(self._rows.texts[text])
                starts.append(SequenceStart(text, SamplingParams(max_tokens=1), n_prompt, _NEEDS))
                blocks[text] = self._blocks[text]
            self._cached[text] = min(self._cached.get(text, 0), root)  # trees of an earlier method follow a root
        while any(self._cached[text] < root for text, root in roots.items()):
            chunks = (self._chunk(text, root, blocks.pop(text, [])) for text, root in roots.items())
            self._run([*filter(None, chunks)], starts)
            starts = []

    def _chunk(self, text: int, root: int, blocks: list[int]) -> Work | None:
        """Return the next tokens of a text to read; None: it is read up to its root."""
        first = self._cached[text]
        self._cached[text] = end = min(root, first + MOST_NODES)
        tokens = self._rows.texts[text][first:end]
        return Work(text, first, tokens, new_blocks=blocks, draw=False, reads_back=False) if tokens else None

    def _score(self, trees: Sequence[_Tree]) -> None:
        works = [self._work(tree) for tree in trees]
        results = self._run(works)
        for tree, result in zip(trees, results, strict=True):
            top = result.top_ids
            assert top.logprobs is not None
            kept = [row for row, node in enumerate(top.nodes.tolist()) if node in tree.scored]
            first = self._rows.append(top.ids[kept], top.logprobs[kept])
            for row, place in enumerate(kept):
                self._known[tree.scored[int(top.nodes[place])]] = first + row
            self._cached[tree.text] = tree.root + 1

    def _work(self, tree: _Tree) -> Work:
        n, root = len(tree.tokens), self._rows.texts[tree.text][tree.root]
        nodes = TokenTree(tree.tokens, tree.parents, probe=[True] * n, probe_ends=tree.scored)
        return Work(tree.text, tree.root, [root], nodes)

    def _run(self, works: list[Work], starts: Sequence[SequenceStart] = ()) -> list[WorkResult]:
        self._n_steps += 1
        return self._target.step(Step(self._n_steps, works, [*starts])).results


def _batches(trees: Sequence[_Tree]) -> Iterator[list[_Tree]]:
    """Yield trees in groups of at most ``MOST_NODES`` nodes, or single ones."""
    some: list[_Tree] = []
    for tree in trees:
        if some and sum(len(one.tokens) for one in some) + len(tree.tokens) > MOST_NODES:
            yield some
            some = []
        some.append(tree)
    yield some
