"""Where an output begins to loop: greedy text of a small model does, and that flatters every n-gram method."""

from __future__ import annotations

from collections.abc import Sequence

NGRAM = 8
TIMES = 3


def loop_start(tokens: Sequence[int]) -> int | None:
    """Position of the second occurrence of the first 8-gram that occurs three times; None without a loop."""
    seen: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(tokens) - NGRAM + 1):
        places = seen.setdefault(tuple(tokens[i : i + NGRAM]), [])
        places.append(i)
        if len(places) == TIMES:
            return places[1]
    return None


def steps_before(cut: int | None, step_tokens: Sequence[int]) -> tuple[int, int]:
    """(tokens, forwards) of the decode steps that begin before ``cut`` (an index into the output).

    The first output token comes from the prefill and does not count.
    """
    if cut is None:
        return sum(step_tokens), len(step_tokens)
    written, tokens, forwards = 1, 0, 0
    for n in step_tokens:
        if written >= cut:
            break
        written += n
        tokens += n
        forwards += 1
    return tokens, forwards
