"""``spectra bench --replay``: what speculation would have accepted of recorded answers, without a model.

The recorded answer takes the target's place (``app.bench.replay_target``), everything else is the real thing. Only
methods that read nothing but text can be asked. There are no times: what a step costs is the model's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from app.bench.records import Key, Record, RecordFile, Setting, source_counts
from app.bench.replay_target import ReplayTarget
from app.inputs.recordings import Recorded
from engine.errors import UnknownMethodError
from engine.loop import Engine, Job
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from speculators.pool import SpeculatorPool

REFUSED = {
    "draft-model": "it drafts with a small model's weights",
    "pld-plus-h": "it reads hidden states of the target",
    "pld-plus-a": "it reads attention of the target",
    "auto": "it weighs drafts against the time a model's step takes",
}
"""Methods that need more than text, as far as their ``needs`` alone cannot tell, and what it is."""
READS = {
    "probe_top_k": "the target's best tokens behind probes",
    "node_top_k": "the target's best tokens at every node",
    "prompt_top_k": "the target's best tokens behind the prompt",
    "hidden_layer": "hidden states of the target",
    "heads": "attention of the target",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What to replay."""

    methods: Sequence[str]
    settings: Sequence[Setting]
    history: Sequence[Recorded]
    test: Sequence[Recorded]
    max_nodes: int
    history_passes: int  # over the history before a warm setting is measured


class Replay:
    """Replays a plan; as in ``app.bench.runs``, a cold setting gives each turn a namespace of its own."""

    def __init__(self, pool: SpeculatorPool, plan: Plan, vocab_size: int) -> None:
        self._plan = plan
        self._fresh = (f"cold {i}" for i in count())
        longest = max(len(turn.prompt) + len(turn.answer) for turn in (*plan.history, *plan.test))
        self._target = ReplayTarget(vocab_size, longest)
        self._engine = Engine(self._target, pool, SchedulerOptions(max_sequences=1, prefix_cache=False))

    def work(self, file: RecordFile) -> int:
        """Turns still to be replayed; forgets the parts of warm passes, which cannot be continued."""
        todo = 0
        for setting in self._plan.settings:
            for method in self._plan.methods:
                keys = [_key(setting, method, turn) for turn in self._plan.test]
                missing = sum(key not in file for key in keys)
                if setting.warm and missing:
                    file.forget(keys)
                    missing = len(keys) + self._plan.history_passes * len(self._plan.history)
                todo += missing
        return todo

    def run(self, file: RecordFile, done: Callable[[], object]) -> None:
        """Replay what ``file`` does not hold yet; ``done`` is called after every turn."""
        for setting in self._plan.settings:
            for method in self._plan.methods:
                shared = f"{setting.label}, {method}" if setting.warm else None
                todo = [turn for turn in self._plan.test if _key(setting, method, turn) not in file]
                if setting.warm and todo:
                    for _ in range(self._plan.history_passes):
                        for turn in self._plan.history:
                            self._replay(setting, method, turn, shared)
                            done()
                for turn in todo:
                    file.append(self._replay(setting, method, turn, shared))
                    done()

    def _replay(self, setting: Setting, method: str, turn: Recorded, namespace: str | None) -> Record:
        """One answer, written by the engine with ``method`` drafting."""
        params = SamplingParams(max_tokens=len(turn.answer))
        space = next(self._fresh) if namespace is None else namespace
        seq = self._engine.submit(Job(turn.prompt, params, method, self._plan.max_nodes, namespace=space))
        self._target.record(seq, turn.answer)
        written: list[int] = []
        while True:
            for _, event in self._engine.step():
                written += event.token_ids
                if event.stats is None:
                    continue
                assert written == turn.answer, "the replay wrote something else than was recorded"
                return Record(
                    method=method,
                    index=turn.index,
                    turn=turn.turn,
                    question_id=turn.question_id,
                    category=turn.category,
                    prompt_tokens=event.stats.prompt_tokens,
                    token_ids=written,
                    step_tokens=event.stats.step_tokens,
                    step_nodes=list(self._target.step_nodes(seq)),
                    warm=setting.warm,
                    finish_reason=event.finish_reason or "",
                    by_source=source_counts(event.stats),
                )


def check_methods(methods: Sequence[str], pool: SpeculatorPool) -> None:
    """Refuse methods that need more than text.

    Raises:
        UnknownMethodError: names the method and what it needs; or it is unknown, or lacks its corpus.
    """
    for method in methods:
        for part in (part.strip() for part in method.split("+")):
            reason = REFUSED.get(part) or _read_back(pool.needs(part))
            if reason:
                raise UnknownMethodError(f"method {part!r} cannot be replayed from text alone: {reason}", "method")
        pool.needs(method)


def _read_back(needs: Needs) -> str:
    """What a method reads of the target besides tokens, in words; empty if nothing."""
    nothing = Needs()
    if needs == nothing:
        return ""
    wanted = [what for name, what in READS.items() if getattr(needs, name) != getattr(nothing, name)]
    return f"it reads {' and '.join(wanted) or 'states of the target'}"


def _key(setting: Setting, method: str, turn: Recorded) -> Key:
    return Key(setting, method, 0, turn.index, turn.turn)
