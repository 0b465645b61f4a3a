"""A replay in which a model scores the drafted nodes that are off the recorded text, so that every answer is its own.

Methods and settings that are compared draft many of the same nodes. Each is scored once, for all of them; nodes on the
text were scored when it was recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from benchmarks.support.recording import TOP_K
from benchmarks.support.replay import NodesOffText, Places, RecordedRows, ReplayedTarget
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.step import SequenceStart, Step, Work, WorkResult
from engine.target_model.info import Target, TargetInfo
from engine.tree import ROOT, TokenTree

MOST_NODES = 512  # nodes of a step, or tokens of a chunk; more would need much memory
ROOM = 192  # slots of a text's cache in addition to its tokens, for trees
_NEEDS = Needs(probe_top_k=TOP_K, top_logprobs=True)
_Path = tuple[int, int, tuple[int, ...]]  # text, position of the last token on it, tokens after that one


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
    scored: dict[int, _Path] = field(default_factory=dict)  # node -> its path
    children: dict[tuple[int, int], int] = field(default_factory=dict)  # parent, token -> node

    def add(self, path: Sequence[int], key: _Path) -> None:
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
        self._known: dict[_Path, int] = {}  # path -> its row
        self._cached: dict[int, int] = {}  # text -> first tokens of it that are in the target's cache
        counts = blocks_of(rows.texts, block_size)
        ends = np.cumsum(counts).tolist()
        self._blocks = [[*range(end - count, end)] for end, count in zip(ends, counts, strict=True)]
        self._n_steps = 0

    @cached_property
    def _target(self) -> Target:
        return self._load()

    def find(self, off: NodesOffText) -> Places:
        """Return the rows of nodes off their texts, ``[n]``, after scoring those that are new."""
        keys = [*zip(off.text, off.fork, off.tail, strict=True)]
        missing: dict[int, list[_Path]] = defaultdict(list)
        for key in dict.fromkeys(keys):
            if key not in self._known:
                missing[key[0]].append(key)
        if missing:
            trees = [self._tree(text, paths) for text, paths in missing.items()]
            self._fill({tree.text: tree.root for tree in trees})
            for some in _batches(trees):
                self._score(some)
        return np.array([self._known[key] for key in keys])

    def _tree(self, number: int, paths: Sequence[_Path]) -> _Tree:
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


class ComputedTarget(ReplayedTarget):
    """A replay whose answers off the text are computed.

    Args:
        scorer: of the texts.
        rows: of the texts, the same as the scorer's.
    """

    def __init__(self, info: TargetInfo, rows: RecordedRows, scorer: PathScorer) -> None:
        super().__init__(info, rows)
        self._scorer = scorer

    def _rows_of(self, off: NodesOffText) -> Places:
        return self._scorer.find(off)
