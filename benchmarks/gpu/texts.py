"""Does the engine write the same text, however it is batched, drafted, cut into chunks, preempted or split?

Random weights have many near-ties, so this is the harshest text there is. Every way is compared with plain decoding in
large batches: texts with another token, the first such place, and, up to there, the drawn tokens' log-probabilities
that are not bitwise equal (each depends on all logits of its row). Every second text is sampled, the others greedy.
"""

from __future__ import annotations

from functools import partial

from benchmarks.gpu.measuring.rows import Rows
from benchmarks.gpu.measuring.writing import COLUMNS, DEPTH, WAYS, Writer
from benchmarks.gpu.setting import Report, Setting


def run(setting: Setting) -> Report:
    """Write the texts in all ways."""
    writer = Writer(setting)
    table = Rows(setting, f"Same texts, {writer.geometry.name}, {setting.dtype}", COLUMNS)
    for way in WAYS:
        table.attempt(way.name, partial(writer.row, way))
    return table.report(
        f"Compared with the first row. A draft has {DEPTH} tokens of the first row's text; in a tree, each among wrong "
        "ones. Tokens a step are of a sequence; log-probabilities are compared up to the first different token.",
    )
