"""Which rows of a step need logits, and what is read back from them besides the drawn tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from engine.protocol import Needs
from engine.step import Work
from engine.top_ids import NO_TOP_IDS, TopIds
from engine.tree import ROOT, FloatArray, IntArray


@dataclass(slots=True)
class LogitRows:
    """Rows of one work that go through the head, relative to its span.

    The first ``n_walk`` rows are the root and all nodes up to the last that can be accepted (a chunk: its last
    token), in tree order, because verification addresses nodes by offset. Leaves of probes follow; inner probe
    nodes cost no head.
    """

    rows: list[int]
    n_walk: int
    top_k: int = 0
    nodes: list[int] = field(default_factory=list)  # node of every row (-1 the root), trees only


def logit_rows(work: Work, needs: Needs) -> LogitRows:
    """The rows of a work that need logits."""
    if work.tree is None:
        n = len(work.tokens)
        if needs.prompt_top_k:
            return LogitRows(list(range(n)), n, needs.prompt_top_k)
        return LogitRows([n - 1] if work.draw else [], int(work.draw))
    tree = work.tree
    n_walk = 1 + max((node + 1 for node, probe in enumerate(tree.probe) if not probe), default=0)
    nodes = list(range(ROOT, n_walk - 1))
    if needs.node_top_k:
        nodes += range(n_walk - 1, len(tree))
    elif needs.probe_top_k and n_walk <= len(tree):
        nodes += sorted(node for node in tree.probe_ends if node >= n_walk - 1)
    return LogitRows([node + 1 for node in nodes], n_walk, max(needs.node_top_k, needs.probe_top_k), nodes)


def node_top(logits: Tensor, rows: LogitRows, work: Work, needs: Needs) -> TopIds:
    """Best next ids behind nodes, and their log-probabilities if wanted; ``logits`` ``[len(rows.rows), vocab]``."""
    if work.tree is None or not rows.top_k or not rows.nodes:
        return NO_TOP_IDS
    wanted = list(range(len(rows.nodes)))
    if not needs.node_top_k:
        wanted = [i for i, node in enumerate(rows.nodes) if node in work.tree.probe_ends]
    if not wanted:
        return NO_TOP_IDS
    picked = logits if len(wanted) == len(rows.nodes) else logits[torch.tensor(wanted, device=logits.device)]
    nodes = np.array([rows.nodes[i] for i in wanted], dtype=np.int32)
    return TopIds(nodes, *_top(picked, rows.top_k, needs.top_logprobs))


def prompt_top(logits: Tensor, needs: Needs) -> tuple[IntArray | None, FloatArray | None]:
    """Best next ids at every position of a chunk, ``[chunk, k]`` int32, and their log-probabilities if wanted."""
    if not needs.prompt_top_k:
        return None, None
    return _top(logits, needs.prompt_top_k, needs.top_logprobs)


def _top(logits: Tensor, k: int, with_logprobs: bool) -> tuple[IntArray, FloatArray | None]:
    """The ``k`` best ids of every row, best first, and their log-probabilities."""
    values, ids = torch.topk(logits, min(k, logits.shape[-1]), dim=-1)
    places = np.ascontiguousarray(ids.to(torch.int32).cpu().numpy())
    if not with_logprobs:
        return places, None
    logprobs = values.float() - torch.logsumexp(logits.float(), dim=-1, keepdim=True)
    return places, np.ascontiguousarray(logprobs.cpu().numpy())
