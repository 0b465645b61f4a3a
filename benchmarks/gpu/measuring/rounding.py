"""How far apart the logits of one text lie that is scored in several ways, and each from fp32."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.measuring.geometry import BLOCK, Geometry
from benchmarks.gpu.measuring.rows import Row, Rows
from benchmarks.gpu.setting import Setting
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, Work
from engine.tree import EMPTY_TREE, ROOT, TokenTree

PLAIN = "token by token"
COLUMNS = {
    "way": "scored as",
    "rows": "rows",
    "max_error": "largest difference from fp32",
    "rms_error": "rms difference from fp32",
    "same_best": "best token as in fp32",
    "max_apart": f"largest difference from {PLAIN}",
    "bitwise": f"rows bitwise as {PLAIN}",
}


class Scorer:
    """Scores one text behind one context, as often as asked; everything is one sequence of one stage."""

    def __init__(self, model: Any, context: Sequence[int], text: Sequence[int], reference: bool = False) -> None:
        spec = read_spec(model.config, ())
        (layers,) = split_layers(spec.n_layers, 1)
        n_blocks = -(-(len(context) + 4 * len(text)) // BLOCK)
        self._shard = ModelShard(model, spec, layers, n_blocks * BLOCK)
        self._stage = Stage(self._shard, n_blocks, BLOCK, reference)
        self._number, self._n, self._text, self._vocab = 0, len(context), list(text), spec.vocab_size
        start = SequenceStart(0, SamplingParams(max_tokens=1 << 30), len(context), Needs())
        blocks = list(range(n_blocks))
        self._score(Work(0, 0, list(context), new_blocks=blocks, draw=False), [start])

    def ways(self) -> dict[str, Tensor]:
        """Logits fp32 ``[len(text), vocab]`` of every way; of the tree, of its path only."""
        return {
            PLAIN: torch.cat([self._work(place, [token], EMPTY_TREE) for place, token in enumerate(self._text)]),
            "chain": self._work(0, self._text[:1], self._chain()),
            "path of a tree": self._path(),
            "chunk of prompt": self._work(0, self._text, None),
        }

    def _chain(self) -> TokenTree:
        below = self._text[1:]
        return TokenTree(below, range(ROOT, len(below) - 1))

    def _path(self) -> Tensor:
        """The text among wrong siblings, some of which have children: three nodes for one of the path."""
        tokens: list[int] = []
        parents: list[int] = []
        path, above, astray = [0], ROOT, ROOT
        for token in self._text[1:]:
            tokens += [(token + 1) % self._vocab, token, (token + 2) % self._vocab]
            parents += [above, above, astray]
            astray, above = len(tokens) - 3, len(tokens) - 2
            path.append(above + 1)  # a node's row
        logits = self._work(0, self._text[:1], TokenTree(tokens, parents))
        return logits.index_select(0, torch.tensor(path, device=logits.device))

    def _work(self, place: int, tokens: list[int], tree: TokenTree | None) -> Tensor:
        return self._score(Work(0, self._n + place, tokens, tree))

    def _score(self, work: Work, starts: Sequence[SequenceStart] = ()) -> Tensor:
        self._number += 1
        activations = self._stage.forward(Step(self._number, [work], list(starts)), None)
        with torch.inference_mode():
            return self._shard.logits(activations.hidden[0]).float()


def compared(found: Mapping[str, Tensor], oracle: Tensor) -> list[Row]:
    """A row for every way."""
    plain = found[PLAIN]
    return [
        {
            "way": way,
            "rows": len(logits),
            "max_error": float((logits - oracle).abs().max()),
            "rms_error": float((logits - oracle).square().mean().sqrt()),
            "same_best": float((logits.argmax(-1) == oracle.argmax(-1)).float().mean()),
            "max_apart": float((logits - plain).abs().max()),
            "bitwise": int((logits == plain).all(-1).sum()),
        }
        for way, logits in found.items()
    ]


def rounding(setting: Setting, geometry: Geometry, model: Any) -> Rows:
    """Rows of all ways, in short and in long contexts (a long one is attended to in two parts, which are merged)."""
    table = Rows(
        setting, f"Rounding, {geometry.name}, against fp32 on the same device", {"context": "context", **COLUMNS}
    )
    rng = random.Random(0)
    for n_context, n_text in ((30, 5), (1100, 5)) if setting.tiny else ((300, 21), (2048, 21)):
        tokens = [rng.randrange(geometry.vocab) for _ in range(n_context + n_text)]
        context, text = tokens[:n_context], tokens[n_context:]

        def measure(context: list[int] = context, text: list[int] = text) -> list[Row]:
            found = Scorer(model, context, text).ways()
            exact = Scorer(copy.deepcopy(model).float(), context, text, reference=True).ways()[PLAIN]
            return [{"context": len(context), **row} for row in compared(found, exact)]

        table.attempt(f"context {n_context}", measure)
    return table
