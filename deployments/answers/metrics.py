"""Metrics of the answer keeper, which it reports to the router."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.registry import Collector

from deployments.answers.keeper import AnswerKeeper
from deployments.metrics.families import OURS, read_family
from deployments.metrics.process import ProcessMetrics

PID = "pid"  # label: while a keeper is replaced, both report


class AnswerGauges(Collector):
    """Kept answers and their bytes, and the metrics of the process.

    Args:
        keeper: of the answers.
        node: address of the node.
    """

    def __init__(self, keeper: AnswerKeeper, node: str) -> None:
        self._keeper = keeper
        self._process = ProcessMetrics("answers", node)

    def collect(self) -> Iterator[Metric]:
        yield from self._process.collect()
        kept, pid = self._keeper.kept, str(os.getpid())
        counts = Counter(entry.status for entry in kept.by_id.values())
        series = [((status, pid), float(count)) for status, count in counts.items()]
        yield read_family("gauge", f"{OURS}:kept_answers", "Answers that are kept.", ("status", PID), series)
        text = "Bytes of kept answers: requests and events."
        yield read_family("gauge", f"{OURS}:kept_answer_bytes", text, (PID,), [((pid,), float(kept.n_bytes))])


class AbandonedAnswers(Collector):
    """Counter of the streams that were cancelled because they had no reader."""

    def __init__(self, keeper: AnswerKeeper) -> None:
        self._keeper = keeper

    def collect(self) -> Iterator[Metric]:
        text = "Streams that were cancelled because they had no reader."
        yield read_family(
            "counter", f"{OURS}:answers_abandoned", text, (), [((), float(self._keeper.kept.n_abandoned))]
        )
