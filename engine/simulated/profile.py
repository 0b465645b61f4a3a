"""Step times of a simulated stage, and the profiles that come with the package. No clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from engine.errors import ConfigError
from engine.step import Work


@dataclass(frozen=True, slots=True)
class PipelineProfile:
    """Step times of equal stages, and the links between them.

    A stage takes ``base_s`` for a step of up to ``flat_sequences`` decoding sequences whose roots and nodes fill up to
    ``flat_rows`` rows, and proportionally longer above either. Every node, every row of a prompt and every cached token
    of a decoding sequence adds its own time. In addition to ``base_s``, a mixture of experts reads the experts that its
    rows choose (``read_experts``).

    Raises:
        ConfigError: a value is out of range; the message names the field.
    """

    base_s: float  # seconds of a stage for the smallest step
    stages: int = 1  # of the pipeline, where the configuration names no number
    flat_sequences: int = 1
    flat_rows: int = 1 << 20  # roots and nodes
    node_s: float = 0.0  # seconds per drafted node and stage, from the first on
    prompt_row_s: float = 0.0  # seconds per row of a prompt and stage
    context_s: float = 0.0  # seconds per token in the cache of a decoding sequence and stage
    verify_s: float = 0.0  # seconds the last stage adds
    link_latency_s: float = 0.0  # seconds of a hop between stages
    link_bytes_per_s: float = 0.0  # 0: no limit
    row_bytes: int = 16_384  # hidden state of one row: 8192 values of 2 bytes, a 70B's
    # Ranks of a stage exchange sums in the faster of two ways: all partial sums, or in two messages by rows.
    exchange_s: float = 0.0  # seconds per step and stage until one-message exchanges of no row are done
    exchange_rows: int = 1  # least rows that are exchanged: steps of CUDA graphs are padded
    gather_row_s: float = 0.0  # seconds per row and stage, with one message
    scatter_row_s: float = 0.0  # seconds per row and stage, with two messages
    expert_s: float = 0.0  # seconds per stage in which a rank reads one expert of every layer
    experts_per_rank: int = 0  # experts of a layer that a rank has
    expert_fraction: float = 0.0  # of a layer's experts that a row uses
    expert_ranks: int = 1  # that have the experts of a layer

    def __post_init__(self) -> None:
        for least, names in (
            (1, ("stages", "flat_sequences", "flat_rows", "exchange_rows", "expert_ranks")),
            (0, ("base_s", "node_s", "prompt_row_s", "context_s", "verify_s")),
            (0, ("link_latency_s", "link_bytes_per_s", "row_bytes")),
            (0, ("exchange_s", "gather_row_s", "scatter_row_s")),
            (0, ("expert_s", "experts_per_rank", "expert_fraction")),
        ):
            for name in names:
                value = getattr(self, name)
                if not (value >= least and math.isfinite(value)):
                    raise ConfigError(f"profile: {name} is {value}; it must be at least {least} and finite")
        if self.expert_fraction > 1:
            raise ConfigError(f"profile: expert_fraction is {self.expert_fraction}; it must be at most 1")

    def stage_seconds(self, sequences: int, nodes: int, prompt_rows: int = 0, is_last: bool = False) -> float:
        """Seconds one stage takes for ``sequences`` trees with ``nodes`` nodes in all, and for rows of prompt."""
        rows = sequences + nodes
        load = max(sequences / self.flat_sequences, rows / self.flat_rows)
        reading = self.base_s + self.expert_s * self.read_experts(rows + prompt_rows)
        seconds = max(reading, self.base_s * load) + self.node_s * nodes + self.prompt_row_s * prompt_rows
        seconds += self.exchange_seconds(rows + prompt_rows)
        return seconds + (self.verify_s if is_last else 0.0)

    def read_experts(self, rows: int) -> float:
        """Estimate the experts of a layer that the busiest rank reads in a step of ``rows``.

        Every expert is taken to be equally likely. Of several ranks the busiest has sqrt(2 ln T) standard deviations
        more than the mean, like the largest of T normal variables.
        """
        chosen = 1 - (1 - self.expert_fraction) ** rows
        mean = self.experts_per_rank * chosen
        variance = mean * (1 - chosen) * (1 - 1 / self.expert_ranks)
        return min(self.experts_per_rank, mean + math.sqrt(2 * math.log(self.expert_ranks) * variance))

    def exchange_seconds(self, rows: int) -> float:
        """Return the seconds that the ranks of a stage exchange sums of ``rows`` rows."""
        n = max(rows, self.exchange_rows)
        return min(self.exchange_s + self.gather_row_s * n, 2 * self.exchange_s + self.scatter_row_s * n)

    def wire_seconds(self, rows: int) -> float:
        """Seconds a link is busy with the hidden states of a step, latency not included."""
        return rows * self.row_bytes / self.link_bytes_per_s if self.link_bytes_per_s else 0.0

    def work_seconds(self, works: Sequence[Work], is_last: bool) -> float:
        """``stage_seconds`` of a step's work, plus the time of its contexts; ``is_last``: on the last stage."""
        trees = [work.tree for work in works if work.tree is not None]
        prompt_rows = sum(len(work.tokens) for work in works if work.tree is None)
        context = sum(work.n_cached for work in works if work.tree is not None)
        return self.stage_seconds(len(trees), sum(map(len, trees)), prompt_rows, is_last) + self.context_s * context


SIMULATED = "simulated"  # family of a simulated target's spec


@dataclass(frozen=True, slots=True)
class Simulation:
    """Options of a simulated target."""

    profile: PipelineProfile
    recordings: bytes = field(default=b"", repr=False)  # from ``engine.simulated.answers.pack_recordings``


PAPER_STEP_S = 1 / 14.7  # SPECTRA (Le et al., 2025): 70B FP16, 14.7 tokens/s, one forward each, on 2, 4, 8 H100
PAPER_TREE_S = 2.52 / 28.9  # the same with SPECTRA: 2.52 tokens per forward, 28.9 tokens/s
PAPER_NODES = 128  # of its trees
PROMPT_ROW_S = 140e9 / 500e12  # 2 FLOP per parameter at half of an H100's dense peak in FP16; assumed


def _paper_70b(stages: int) -> PipelineProfile:
    """A 70B in FP16 over H100s: one stage works at a time in the paper's runs, so a stage takes its share of a step.

    ``flat_rows``: an H100's FP16 arithmetic catches up with its memory at some 300 rows. ``flat_sequences``: reading
    320 kB of keys and values per token makes 64 sequences of 1000 tokens cost what a seventh of the weights does.
    Both are estimates from data sheets; what a node costs, drafting it included, is the paper's own difference.
    """
    return PipelineProfile(
        base_s=PAPER_STEP_S / stages,
        stages=stages,
        flat_sequences=64,
        flat_rows=256,
        node_s=(PAPER_TREE_S - PAPER_STEP_S) / PAPER_NODES / stages,
        prompt_row_s=PROMPT_ROW_S / stages,
    )


H200_BYTES_PER_S = 4.3e12  # of 4.8e12 on the data sheet: what a copy reached on one
H200_FLOPS = 790e12  # bf16, dense: what a large product reached on one


def _h200_8b() -> PipelineProfile:
    """A Llama-3-8B in bf16 on one H200, as its memory and arithmetic allow; no run of one has been measured here.

    15 GB of weights are read a step (3.5 ms; embeddings are looked up), and 0.5 ms go to launches and small kernels,
    which assumes graphs and fused kernels. ``flat_rows`` is where 16 GFLOP a row take as long as that. A token's keys
    and values are 128 KiB (32 layers, 8 heads of 128). 64 nodes add 0.3 ms of attention and walking: an estimate.
    """
    base_s, row_s = 15e9 / H200_BYTES_PER_S + 5e-4, 16e9 / H200_FLOPS
    return PipelineProfile(
        base_s=base_s,
        flat_sequences=1 << 20,
        flat_rows=round(base_s / row_s),
        node_s=0.3e-3 / 64,
        prompt_row_s=row_s,
        context_s=128 * 1024 / H200_BYTES_PER_S,
        row_bytes=8192,
    )


PROFILES = MappingProxyType(
    {
        "70b-h100x2": _paper_70b(2),
        "70b-h100x4": _paper_70b(4),
        "70b-h100x8": _paper_70b(8),
        "8b-h200": _h200_8b(),
        # For scheduling: 10 ms for up to 2 sequences, whatever their trees, so that the ideal is easy to compute.
        "flat10": PipelineProfile(base_s=0.01, stages=4, flat_sequences=2),
    }
)
"""Profiles by name."""


def profile_of(given: dict[str, Any]) -> PipelineProfile:
    """A profile from plain data, as a JSON file holds it.

    Raises:
        ConfigError: a key is unknown or missing, or a value is no number or out of range.
    """
    kinds = {known.name: known.type for known in fields(PipelineProfile)}
    unknown = sorted(set(given) - set(kinds))
    if unknown:
        raise ConfigError(f"profile has no field {unknown[0]!r}; it has {', '.join(kinds)}")
    if "base_s" not in given:
        raise ConfigError("profile lacks base_s, the seconds a stage takes for the smallest step")
    for name, value in given.items():
        allowed: tuple[type, ...] = (int,) if kinds[name] == "int" else (int, float)
        if isinstance(value, bool) or not isinstance(value, allowed):
            raise ConfigError(
                f"profile: {name} is {value!r}; it must be {'a whole' if len(allowed) == 1 else 'a'} number"
            )
    return PipelineProfile(**given)
