"""Which rows of a step need logits, and what is read back from them besides the drawn tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from engine.protocol import Needs
from engine.step import Work
from engine.tree import ROOT, IntArray


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


def node_top_ids(logits: Tensor, rows: LogitRows, work: Work, needs: Needs) -> dict[int, list[int]]:
    """Best next ids behind nodes, from raw logits ``[len(rows.rows), vocab]``."""
    if work.tree is None or not rows.top_k or not rows.nodes:
        return {}
    wanted = list(range(len(rows.nodes)))
    if not needs.node_top_k:
        wanted = [i for i, node in enumerate(rows.nodes) if node in work.tree.probe_ends]
    if not wanted:
        return {}
    picked = logits if len(wanted) == len(rows.nodes) else logits[torch.tensor(wanted, device=logits.device)]
    ids = torch.topk(picked, min(rows.top_k, logits.shape[-1]), dim=-1).indices.tolist()
    return {rows.nodes[i]: top for i, top in zip(wanted, ids, strict=True)}


def prompt_top_ids(logits: Tensor, k: int) -> IntArray:
    """Best next ids at every position of a chunk, int32 ``[chunk, k]``."""
    ids = torch.topk(logits, min(k, logits.shape[-1]), dim=-1).indices
    return np.ascontiguousarray(ids.to(torch.int32).cpu().numpy())
