"""Dollars per million tokens of a pass: a price of GPU time, and the server's own times of prefill and decode."""

from __future__ import annotations

import re
import secrets
from dataclasses import replace

import msgspec

from app.load.figures import LoadFigures
from app.load.settings import RequestPlan
from app.reporting.report import markdown, number
from app.reporting.summaries import ratio

MOST_GPUS = 4096
FORMULA = """\
dollars = price x GPUs x seconds / 3600. The input share of them is the part of prefill in the server's own seconds of
prefill and decode (vllm:request_prefill_time_seconds and vllm:request_decode_time_seconds at /metrics)."""
OPEN_LOOP = "Arrivals decide how long each pass lasts, so both cost about as much: compare costs in a closed loop."
_SECONDS = re.compile(r"^vllm:request_(prefill|decode)_time_seconds_sum(?:\{.*\})? (\S+)", re.MULTILINE)
PhaseSeconds = tuple[float, float] | None  # of prefill and of decode; None: not known


class PassCosts(msgspec.Struct, frozen=True):
    """Dollars of one pass over the requests; a figure that the server does not report is None."""

    load: str  # label of its load
    speculation: bool | None  # whether answers had drafts; None: the server does not say
    output_tokens_per_s: float | None
    dollars: float
    input_share: float | None  # of the dollars
    per_million_output_all: float | None  # all dollars over the output tokens: prompts are included
    per_million_input: float | None
    per_million_output: float | None


class RunCosts(msgspec.Struct):
    """Costs of the passes of a run: at each load as requested and, if that had drafts, without speculation."""

    dollars_per_hour: float  # of one GPU
    gpus: int = 1
    passes: list[PassCosts] = []

    def add(self, load: str, found: LoadFigures, phases: PhaseSeconds) -> None:
        """Add a pass; ``phases`` are the server's seconds in it."""
        dollars = self.dollars_per_hour * self.gpus * found.seconds / 3600
        share = None if phases is None else ratio(phases[0], sum(phases))

        def per_million(part: float | None, tokens: int | None) -> float | None:
            return None if part is None or tokens is None else ratio(1e6 * dollars * part, tokens)

        self.passes.append(
            PassCosts(
                load,
                None if found.speculation is None else is_drafting(found),
                found.output_tokens_per_s,
                dollars,
                share,
                per_million_output_all=per_million(1.0, found.output_tokens),
                per_million_input=per_million(share, found.prompt_tokens),
                per_million_output=per_million(None if share is None else 1 - share, found.output_tokens),
            )
        )

    def table(self, is_open_loop: bool) -> str:
        """Return the costs as Markdown, with their formula."""
        names = {True: "with speculation", False: "without speculation", None: "as served"}
        head = ("load", "dollars per million tokens", "output, input included", "input", "output", "output tokens/s")
        rows = [
            [
                one.load,
                names[one.speculation],
                *map(_dollars, (one.per_million_output_all, one.per_million_input, one.per_million_output)),
                number(one.output_tokens_per_s, 1),
            ]
            for one in self.passes
        ]
        gpus = "1 GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
        lines = [f"{gpus} at {self.dollars_per_hour:g} dollars an hour; {FORMULA}"]
        if is_open_loop and len(self.passes) > 1:
            lines.append(OPEN_LOOP)
        if any(one.input_share is None for one in self.passes):
            lines.append("The server's /metrics gave no such times: costs are not divided.")
        return "\n\n".join([markdown(head, rows, 2), *lines])


def is_drafting(found: LoadFigures) -> bool:
    return bool(found.speculation and found.speculation["num_draft_tokens"])


def with_new_salt(plan: RequestPlan, **fields: object) -> RequestPlan:
    """Return the same requests with ``fields``, which find nothing that the server cached or learned from others."""
    return replace(plan, common={**plan.common, **fields, "cache_salt": secrets.token_hex(8)})


def read_phases(metrics: str) -> PhaseSeconds:
    """Return the seconds of all requests in a server's metrics."""
    sums: dict[str, float] = {}
    for phase, seconds in _SECONDS.findall(metrics):
        sums[phase] = sums.get(phase, 0.0) + float(seconds)
    return (sums["prefill"], sums["decode"]) if len(sums) == 2 else None


def subtract_phases(after: PhaseSeconds, before: PhaseSeconds) -> PhaseSeconds:
    """Return the seconds between two readings; None if a counter restarted between them."""
    if after is None or before is None or after[0] < before[0] or after[1] < before[1]:
        return None
    return after[0] - before[0], after[1] - before[1]


def _dollars(value: float | None) -> str:
    return number(value) if value is None or value >= 1 else f"{value:.3g}"
