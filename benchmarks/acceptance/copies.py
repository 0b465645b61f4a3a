"""Where the tokens of an answer stood before: in the prompt, in the answer itself, or nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.support.recording import RecordedText

BEFORE = 2  # tokens that must precede a copied token in both places


class CopyShares(NamedTuple):
    """Shares of the tokens of answers that follow the same ``BEFORE`` tokens as somewhere earlier."""

    prompt: float  # somewhere in the prompt
    answer: float  # only in the answer
    nowhere: float


def copy_shares(texts: Iterable[RecordedText]) -> CopyShares:
    """Return the shares over all tokens of the answers."""
    n_prompt = n_answer = n = 0
    for text in texts:
        tokens: Sequence[int] = text.tokens.tolist()
        first: dict[tuple[int, ...], int] = {}  # n-gram -> where its last token stood first
        for i in range(BEFORE, len(tokens)):
            gram = tuple(tokens[i - BEFORE : i + 1])
            if i >= text.n_prompt:
                n += 1
                n_prompt += first.get(gram, i) < text.n_prompt
                n_answer += text.n_prompt <= first.get(gram, i) < i
            first.setdefault(gram, i)
    return CopyShares(n_prompt / max(1, n), n_answer / max(1, n), 1 - (n_prompt + n_answer) / max(1, n))
