"""Logits of one text by an executor in several ways, and by Hugging Face's own layers in a higher precision."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.measuring.models import BLOCK
from benchmarks.gpu.measuring.steps import ENDLESS, StageBench
from benchmarks.gpu.setting import Row
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.step import SequenceStart, Work
from engine.tree import EMPTY_TREE, ROOT, TokenTree

PLAIN = "token by token"
N_TEXT, N_TEXT_TINY = 21, 5  # scored tokens
HIGHER = {torch.float32: torch.float64, torch.bfloat16: torch.float32}  # precisions to compare with


@torch.inference_mode()
def reference_logits(model: Any, tokens: Tensor, n_last: int, dtype: torch.dtype) -> Tensor:
    """Return the logits of the last ``n_last`` positions of a text int64 ``[n]`` in ``dtype``, ``[n_last, vocab]``.

    Layers are converted one at a time, to save memory. Attention is torch's, causal and without a cache: nothing of the
    engine runs. The model must have no sliding windows.
    """
    inner = model.model
    hidden = inner.embed_tokens(tokens[None]).to(dtype)
    cos_sin = inner.rotary_emb(hidden, torch.arange(len(tokens), device=tokens.device)[None])
    for layer in inner.layers:
        converted = copy.deepcopy(layer).to(dtype)
        converted.self_attn.config._attn_implementation = "sdpa"
        hidden = converted(hidden, attention_mask=None, position_embeddings=cos_sin)
    logits: Tensor = copy.deepcopy(inner.norm).to(dtype)(hidden[0, -n_last:]) @ model.lm_head.weight.to(dtype).T
    return logits


def rms(numbers: Tensor) -> float:
    """Return the root of the mean square."""
    return float(numbers.double().square().mean().sqrt())


class TextScorer:
    """Scores a text after a context as one sequence, with room for trees of 63 nodes."""

    def __init__(self, bench: StageBench, context: Sequence[int], text: Sequence[int]) -> None:
        self._bench, self._n, self._text, self._vocab = bench, len(context), list(text), bench.geometry.vocab
        bench.stage.reset()
        start = SequenceStart(0, SamplingParams(max_tokens=ENDLESS), len(context), Needs())
        blocks = list(range(-(-(len(context) + 64) // BLOCK)))
        bench.forward([Work(0, 0, list(context), new_blocks=blocks, draw=False)], [start])

    def score(self) -> dict[str, Tensor]:
        """Return logits fp32 ``[len(text), vocab]`` by the way in which the rows were computed."""
        first, nodes = self._text[:1], self._text[1:]
        plain = torch.cat([self._rows(place, [token], EMPTY_TREE) for place, token in enumerate(self._text)])
        chain = self._rows(0, first, TokenTree(nodes, range(ROOT, len(nodes) - 1)))
        return {PLAIN: plain, "chain": chain, "tree": self._path(), "chunk": self._rows(0, self._text, None)}

    def _path(self) -> Tensor:
        """Score the text among wrong siblings, some of which have children: three nodes for each token."""
        tokens, parents, rows, parent, sibling = list[int](), list[int](), [0], ROOT, ROOT
        for token in self._text[1:]:
            tokens += [(token + 1) % self._vocab, token, (token + 2) % self._vocab]
            parents += [parent, parent, sibling]
            sibling, parent = len(tokens) - 3, len(tokens) - 2
            rows.append(parent + 1)
        return self._rows(0, self._text[:1], TokenTree(tokens, parents))[rows]

    def _rows(self, place: int, tokens: list[int], tree: TokenTree | None) -> Tensor:
        hidden = self._bench.forward([Work(0, self._n + place, tokens, tree)])[0].hidden[0]
        with torch.inference_mode():
            return self._bench.executor.logits(hidden)


def compare_ways(bench: StageBench, n: int) -> Iterator[Row]:
    """Yield a row for each way of scoring after ``n`` tokens, which must have the bits of plain decoding.

    Errors are root mean squares of the differences of logits from the oracle's. Hugging Face's layers in the executor's
    precision have an error as well; twice that is allowed.
    """
    setting, model, rng = bench.setting, bench.model, random.Random(n)
    m = N_TEXT_TINY if setting.is_tiny else N_TEXT
    tokens = [rng.randrange(bench.geometry.vocab) for _ in range(n + m)]
    ids = torch.tensor(tokens, device=setting.device)
    oracle = reference_logits(model, ids, m, HIGHER[setting.dtype])
    allowed, best = 2 * rms(reference_logits(model, ids, m, setting.dtype) - oracle), oracle.argmax(-1)
    found = TextScorer(bench, tokens[:n], tokens[n:]).score()
    for way, logits in found.items():
        error, equal = rms(logits - oracle), int((logits == found[PLAIN]).all(-1).sum())
        yield {
            "layers": bench.geometry.n_layers, "context": n, "scored": way, "rows": m, "bitwise as plain": equal,
            "error": error, "allowed": allowed, "spread of logits": rms(oracle - oracle.mean(-1, keepdim=True)),
            "oracle's best token": int((logits.argmax(-1) == best).sum()), "ok": equal == m and error <= allowed,
        }  # fmt: skip
