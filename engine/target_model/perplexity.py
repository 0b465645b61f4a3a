"""The perplexity of whole texts under a model, one per text. Knows models, no drafts, no cache, no corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.target_model.whole_texts import WholeTexts

ROWS = 256  # whose logits exist at a time: with a vocabulary of 128k, 128 MiB in fp32

Ids = npt.NDArray[np.int32]


class Perplexity:
    """Scores texts under a model: ``exp(-(1/t) sum_i log p(u_i | start, u_<i))``.

    Args:
        model: the model, all of it.
        start: token before every text that does not begin with it, so that its first token has a context too; None:
            there is none, and a text's first token is context only.
    """

    def __init__(self, model: WholeTexts, start: int | None) -> None:
        self._model = model
        self._start = start

    @classmethod
    def load(
        cls, path: Path, devices: Sequence[torch.device], dtype: torch.dtype, longest: int, start: int | None
    ) -> Perplexity:
        """Load a checkpoint.

        Args:
            path: of the checkpoint.
            devices: as ``WholeTexts.load`` takes them.
            dtype: of weights and activations; logits are summed in fp32.
            longest: tokens of the longest text, without a start token.
            start: see the class.

        Raises:
            UnsupportedModelError: the checkpoint cannot be run.
            ValueError: there are more devices than layers.
        """
        return cls(WholeTexts.load(path, devices, dtype, longest + 1), start)

    @torch.inference_mode()
    def __call__(self, texts: Sequence[Ids], /) -> npt.NDArray[np.float64]:
        """The perplexity of each text, fp64 ``[n]``, at least 1; infinite where it overflows or is no number.

        Raises:
            ValueError: a text has no token with a context.
        """
        tokens, lengths = self._padded(texts)
        if lengths.min() < 2:
            raise ValueError("a text needs a token with another one, or the start token, before it")
        hidden, _ = self._model.states(tokens)
        is_context = torch.from_numpy(np.arange(tokens.shape[1] - 1) < lengths[:, None] - 1)
        found = self._log_probabilities(hidden[:, :-1][is_context.to(hidden.device)], tokens[:, 1:][is_context])
        firsts = np.concatenate(([0], np.cumsum(lengths - 1)[:-1]))
        with np.errstate(over="ignore"):
            perplexities = np.exp(-np.add.reduceat(found.astype(np.float64), firsts) / (lengths - 1))
        return np.nan_to_num(np.maximum(perplexities, 1.0), nan=np.inf, posinf=np.inf)

    def _padded(self, texts: Sequence[Ids]) -> tuple[Tensor, npt.NDArray[np.int64]]:
        """Token ids int64 ``[n, longest]`` with the start token where it is missing, and lengths ``[n]``."""
        missing = [self._start is not None and (not len(text) or text[0] != self._start) for text in texts]
        lengths = np.array([len(text) + more for text, more in zip(texts, missing, strict=True)], np.int64)
        padded = np.zeros((len(texts), lengths.max()), np.int64)
        for row, text, more, n in zip(padded, texts, missing, lengths, strict=True):
            row[0] = self._start if more else 0
            row[int(more) : n] = text
        return torch.from_numpy(padded), lengths

    def _log_probabilities(self, hidden: Tensor, tokens: Tensor) -> npt.NDArray[np.float32]:
        """Log-probability of each of ``tokens`` ``[n]`` behind ``hidden`` ``[n, hidden]``, some rows at a
        time: with a large vocabulary, the logits of a batch would be larger than the model."""
        last, parts = self._model.shards[-1], []
        for states, wanted in zip(torch.split(hidden, ROWS), torch.split(tokens, ROWS), strict=True):
            logits = last.logits(states).float()
            chosen = logits.gather(1, wanted.to(logits.device).unsqueeze(1)).squeeze(1)
            parts.append((chosen - logits.logsumexp(dim=1)).cpu())
        return torch.cat(parts).numpy()
