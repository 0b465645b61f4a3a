"""Rows of a step that need logits, and the order in which the logits are numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.protocol import Needs
from engine.stage.packing import Span
from engine.step import Work
from engine.tree import ROOT

_NO_NEEDS = Needs()


@dataclass(slots=True)
class LogitRows:
    """Rows of one work that need logits, relative to its span.

    First come the root and all nodes up to the last that can be accepted (a chunk: its last token), in tree order,
    because verification addresses nodes by offset. Leaves of probes follow; inner probe nodes need no logits.
    """

    rows: Sequence[int]
    top_k: int = 0  # best ids read back from rows; 0: none
    nodes: Sequence[int] = ()  # node of every row (-1 the root), trees only


def logit_rows(work: Work, needs: Needs) -> LogitRows:
    """Return the rows of a work that need logits."""
    if work.tree is None:
        n = len(work.tokens)
        top_k = needs.prompt_top_k if work.reads_back else 0
        if top_k or work.logprobs_of:
            return LogitRows(range(n), top_k)
        return LogitRows(range(n - 1, n) if work.draw else ())
    tree, n = work.tree, len(work.tree)
    if not work.reads_back:
        needs = _NO_NEEDS
    top_k = max(needs.node_top_k, needs.probe_top_k)
    if not tree.has_probes:
        return LogitRows(range(n + 1), top_k, range(ROOT, n))
    n_walk = 1 + max((node + 1 for node, probe in enumerate(tree.probe) if not probe), default=0)
    nodes = list(range(ROOT, n_walk - 1))
    if needs.node_top_k:
        nodes += range(n_walk - 1, n)
    elif needs.probe_top_k and n_walk <= n:
        nodes += sorted(node for node in tree.probe_ends if node >= n_walk - 1)
    return LogitRows([node + 1 for node in nodes], top_k, nodes)


class HeadRows:
    """The rows of a step that go through the head; logits are numbered in this order.

    Args:
        works: of the step.
        spans: of every work.
        needed: of every work.
        has_prompts_apart: whether rows of prompts that are read back come last, a drawn one twice.
    """

    def __init__(
        self, works: Sequence[Work], spans: Sequence[Span], needed: Sequence[LogitRows], has_prompts_apart: bool
    ) -> None:
        self.walks: list[int] = []  # numbers in the step
        self.prompts: list[int] = []
        self.roots: list[int] = []  # row of the logits of every work's root, or of the last token of its chunk
        in_prompts: list[int | None] = []
        firsts: list[int] = []
        for work, span, logits in zip(works, spans, needed, strict=True):
            rows = logits.rows
            is_apart = has_prompts_apart and work.tree is None and bool(logits.top_k or work.logprobs_of)
            in_prompts.append(len(self.prompts) if is_apart else None)
            if is_apart:
                self.prompts += _shift(rows, span.first)
                rows = rows[-1:] if work.draw else ()
            firsts.append(len(self.walks))
            self.walks += _shift(rows, span.first)
            self.roots.append(firsts[-1] if work.tree is not None else len(self.walks) - 1)
        n = len(self.walks)
        # the first row of the logits that is read back, for every work
        self.firsts = [first if at is None else n + at for first, at in zip(firsts, in_prompts, strict=True)]


def _shift(rows: Sequence[int], first: int) -> Sequence[int]:
    if isinstance(rows, range):  # faster than a list
        return range(first + rows.start, first + rows.stop)
    return [first + row for row in rows]
