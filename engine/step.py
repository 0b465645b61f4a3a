"""Messages of a step: the scheduler's work for a target, and the target's answers.

They are plain data, so one code path serves a target in the same process and a pipeline of other processes. The
accepted path of a step travels with the next one (``keep``), so compaction costs no round trip.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np

from engine.events import TokenLogprob
from engine.protocol import Branch, Needs
from engine.sampling.params import SamplingParams
from engine.top_ids import NO_TOP_IDS, TopIds
from engine.tree import FloatArray, IntArray, TokenTree


class SequenceStart(msgspec.Struct, frozen=True):
    """A new sequence of the target; arrives with its first chunk."""

    seq: int
    params: SamplingParams
    n_prompt: int  # tokens before the first drawn one, for penalties
    needs: Needs
    n_copied: int = 0  # first tokens whose rows are copied from ``source`` before anything else is written
    source: list[int] = []  # blocks that hold them, in text order; other sequences may own them
    text: list[int] = []  # these tokens, if penalties, a minimum length or a grammar need them
    request_id: str = ""  # of the client's request, for log lines


class Work(msgspec.Struct, frozen=True):
    """One sequence's share of a step: a chunk of known text (``tree`` is None), or the root and its tree.

    ``tokens`` are the chunk, or the root alone. ``n_cached`` counts the committed tokens in the cache *after*
    ``keep`` is applied. ``keep`` are the rows (0 the root, node + 1) of the sequence's previous tree that were
    accepted, without the root. ``draw`` says whether the last token's successor is drawn (always for a tree).
    """

    seq: int
    n_cached: int
    tokens: list[int]
    tree: TokenTree | None = None
    keep: list[int] = []
    new_blocks: list[int] = []
    draw: bool = True
    max_new: int = 1  # tokens the sequence may still emit
    moved: bool = False  # ``new_blocks`` replace all of its blocks: its rows move there before anything is written
    reads_back: bool = True  # whether the step reads back the top ids that its needs ask for
    draft_nodes: int = 0  # nodes that the target's drafter may draft after the step
    logprobs_of: list[int] = []  # of a chunk: the tokens after its first ones, whose log-probabilities are returned


class Step(msgspec.Struct, frozen=True):
    """A micro-batch. A stage applies ``ends`` first, then moves, ``starts`` with their copies, and the work."""

    step_id: int
    work: list[Work]
    starts: list[SequenceStart] = []
    ends: list[int] = []


class WorkResult(msgspec.Struct, frozen=True):
    """Answer to one ``Work``; it has only the arrays that the sequence's needs ask for."""

    seq: int
    tokens: list[int] = []  # accepted path + bonus token
    accepted: list[int] = []  # nodes
    logprobs: list[TokenLogprob] | None = None
    top_ids: TopIds = NO_TOP_IDS  # after nodes
    prompt_top_ids: IntArray | None = None  # [chunk, k]
    hidden: FloatArray | None = None  # [n_new_positions, d]
    attention: FloatArray | None = None  # [n_heads, n_positions]
    prompt_top_logprobs: FloatArray | None = None  # [chunk, k]
    draft: Branch | None = None  # of the target's drafter, after the drawn token
    draft_seconds: float = 0.0  # the sequence's share of the drafter's time
    prompt_logprobs: list[TokenLogprob] | None = None  # of the work's ``logprobs_of``
    error: str = ""  # why the text cannot continue after ``tokens``; "": it can, or has ended


class StepResult(msgspec.Struct, frozen=True):
    """Answers in the order of the step's work; only ``error`` if the step failed."""

    step_id: int
    results: list[WorkResult]
    seconds: float  # of the last stage
    error: str = ""
    stage_seconds: tuple[float, ...] = ()  # busy time of every stage of a pipeline, first to last


class _WireArray(msgspec.Struct, frozen=True, array_like=True):
    """An fp32 or int32 array on the wire."""

    dtype: Literal["<f4", "<i4"]
    shape: tuple[int, ...]
    raw: bytes

    @classmethod
    def pack(cls, array: IntArray | FloatArray) -> _WireArray:
        """Return the message of an array; the receiver refuses any other dtype."""
        return cls(array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes())  # type: ignore[arg-type]

    def unpack(self) -> Any:
        """Return the array, read-only."""
        return np.frombuffer(self.raw, dtype=self.dtype).reshape(self.shape)


class _WireTree(msgspec.Struct, frozen=True, array_like=True):
    """A token tree on the wire."""

    tokens: list[int]
    parents: list[int]
    sources: list[int]
    probe: list[bool]
    source_names: list[str]
    probe_ends: list[int]
    q: _WireArray | None


class _WireTopIds(msgspec.Struct, frozen=True, array_like=True):
    """Top ids on the wire."""

    nodes: _WireArray
    ids: _WireArray
    logprobs: _WireArray | None


def _encode(value: object) -> object:
    if isinstance(value, np.ndarray):
        return _WireArray.pack(value)
    if isinstance(value, TopIds):
        logprobs = None if value.logprobs is None else _WireArray.pack(value.logprobs)
        return _WireTopIds(_WireArray.pack(value.nodes), _WireArray.pack(value.ids), logprobs)
    if isinstance(value, TokenTree):
        q = None if value.q is None else _WireArray.pack(value.q)
        return _WireTree(
            value.tokens, value.parents, value.sources, value.probe, list(value.source_names), list(value.probe_ends), q
        )
    raise TypeError(f"a step message cannot hold a {type(value)}")


def _decode(kind: type, value: object) -> object:
    if kind is TopIds:
        top = msgspec.convert(value, _WireTopIds)
        return TopIds(top.nodes.unpack(), top.ids.unpack(), None if top.logprobs is None else top.logprobs.unpack())
    if kind is not TokenTree:
        return msgspec.convert(value, _WireArray).unpack()
    wire = msgspec.convert(value, _WireTree)
    q = None if wire.q is None else wire.q.unpack()
    return TokenTree(wire.tokens, wire.parents, wire.sources, wire.probe, wire.source_names, q, wire.probe_ends)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode)
_STEP = msgspec.msgpack.Decoder(Step, dec_hook=_decode)
_RESULT = msgspec.msgpack.Decoder(StepResult, dec_hook=_decode)


def encode(message: Step | StepResult) -> bytes:
    """Return the bytes of a message in msgpack, never pickle, which would run a peer's code."""
    return _ENCODER.encode(message)


def decode_step(raw: bytes) -> Step:
    """Return the step in ``raw``.

    Raises:
        msgspec.ValidationError: ``raw`` is no step.
    """
    return _STEP.decode(raw)


def decode_result(raw: bytes) -> StepResult:
    """Return the result in ``raw``; raise as ``decode_step`` does."""
    return _RESULT.decode(raw)
