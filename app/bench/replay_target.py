"""A target without a model: it writes recorded answers, whatever is drafted.

The engine, its scheduler and the speculators run as on any target; ``engine.verify.known_text`` verifies.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.model.spec import ModelSpec
from engine.step import Step, StepResult, Work, WorkResult
from engine.target.info import MAX_TREE, TargetInfo
from engine.verify.known_text import follow

BLOCK = 64  # tokens; blocks are counted by the scheduler and hold nothing


@dataclass(slots=True)
class _Sequence:
    """What the target knows of one sequence."""

    n_prompt: int = 0  # tokens
    answer: Sequence[int] = ()
    step_nodes: list[int] = field(default_factory=list)


class ReplayTarget:
    """Implements ``engine.target.info.Target``.

    Args:
        vocab_size: of the tokenizer.
        longest: most tokens of a prompt and its answer together.
    """

    def __init__(self, vocab_size: int, longest: int) -> None:
        spec = ModelSpec(
            family="replay",
            n_layers=0,
            n_heads=0,
            n_kv_heads=1,
            head_dim=0,
            hidden_size=0,
            vocab_size=vocab_size,
            max_positions=longest,
            layer_types=(),
            eos_ids=(),
            dtype="float32",
            logit_softcap=None,
        )
        n_blocks = -(-(longest + MAX_TREE + 1) // BLOCK)
        self.info = TargetInfo(spec, n_blocks, BLOCK, longest)
        self._live: dict[int, _Sequence] = {}

    def record(self, seq: int, answer: Sequence[int]) -> None:
        """What sequence ``seq`` is to write; before its first step."""
        self._live[seq] = _Sequence(answer=answer)

    def step_nodes(self, seq: int) -> list[int]:
        """Nodes of every tree of a live sequence so far."""
        return self._live[seq].step_nodes

    @property
    def n_sequences(self) -> int:
        """Sequences that are held."""
        return len(self._live)

    def step(self, step: Step) -> StepResult:
        """Answer one micro-batch."""
        began = time.perf_counter()
        for seq in step.ends:
            self._live.pop(seq, None)
        for start in step.starts:
            self._live[start.seq].n_prompt = start.n_prompt
        results = [self._answer(work) for work in step.work]
        return StepResult(step.step_id, results, time.perf_counter() - began)

    def _answer(self, work: Work) -> WorkResult:
        if not work.draw:
            return WorkResult(work.seq)
        sequence = self._live[work.seq]
        written = work.n_cached + len(work.tokens) - sequence.n_prompt
        future = sequence.answer[written : written + work.max_new]
        if work.tree is None:
            return WorkResult(work.seq, list(future[:1]))
        sequence.step_nodes.append(len(work.tree))
        tokens, accepted = follow(work.tree, future)
        return WorkResult(work.seq, tokens, accepted)
