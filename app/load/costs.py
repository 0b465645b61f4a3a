"""Dollars per million tokens of a pass: a price of GPU time, and the server's own times of prefill and decode."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from app.load.figures import LoadFigures
from app.load.settings import RequestPlan
from app.reporting.report import markdown, number
from app.reporting.summaries import ratio

MOST_GPUS = 4096
SALT = "without speculation"  # this pass must not find prefixes that the first pass left in the cache
FORMULA = """\
dollars = price x GPUs x seconds / 3600. The input share of them is the part of prefill in the server's own seconds of
prefill and decode (vllm:request_prefill_time_seconds and vllm:request_decode_time_seconds at /metrics)."""
_SECONDS = re.compile(r"^vllm:request_(prefill|decode)_time_seconds_sum(?:\{.*\})? (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class GpuPrice:
    """The price of the server's GPUs."""

    dollars_per_hour: float  # of one GPU
    gpus: int = 1

    def dollars(self, seconds: float) -> float:
        return self.dollars_per_hour * self.gpus * seconds / 3600


class PassCosts(msgspec.Struct, frozen=True):
    """Dollars of one pass over the requests; a figure that the server does not report is None."""

    load: str  # label of its load
    speculation: bool | None  # whether answers had drafts; None: the server does not say
    requests: int
    ok: int
    output_tokens_per_s: float | None
    dollars: float
    input_share: float | None  # of the dollars
    per_million_output_all: float | None  # all dollars over the output tokens: prompts are included
    per_million_input: float | None
    per_million_output: float | None


def pass_costs(load: str, found: LoadFigures, phases: tuple[float, float] | None, price: GpuPrice) -> PassCosts:
    """Return the costs of a pass; ``phases``: the server's seconds of prefill and of decode in it, if known."""
    dollars = price.dollars(found.seconds)
    share = None if phases is None else ratio(phases[0], sum(phases))

    def per_million(part: float | None, tokens: int | None) -> float | None:
        return None if part is None or tokens is None else ratio(1e6 * part, tokens)

    return PassCosts(
        load=load,
        speculation=None if found.speculation is None else is_drafting(found),
        requests=found.requests,
        ok=found.ok,
        output_tokens_per_s=found.output_tokens_per_s,
        dollars=dollars,
        input_share=share,
        per_million_output_all=per_million(dollars, found.output_tokens),
        per_million_input=per_million(None if share is None else dollars * share, found.prompt_tokens),
        per_million_output=per_million(None if share is None else dollars * (1 - share), found.output_tokens),
    )


class RunCosts(msgspec.Struct, frozen=True):
    """Costs of the passes of a run: at each load as requested and, if that had drafts, without speculation."""

    price: GpuPrice
    passes: Sequence[PassCosts]


def is_drafting(found: LoadFigures) -> bool:
    return bool(found.speculation and found.speculation["num_draft_tokens"])


def without_speculation(plan: RequestPlan) -> RequestPlan:
    """Return the same requests, answered without drafts and without the cached prefixes of the first pass."""
    return replace(plan, common={**plan.common, "speculative": {"enabled": False}, "cache_salt": SALT})


def phase_seconds(metrics: str) -> tuple[float, float] | None:
    """Return the seconds of prefill and decode of all requests in a server's metrics; None without them."""
    sums: dict[str, float] = {}
    for phase, seconds in _SECONDS.findall(metrics):
        sums[phase] = sums.get(phase, 0.0) + float(seconds)
    return (sums["prefill"], sums["decode"]) if len(sums) == 2 else None


def cost_table(costs: RunCosts) -> str:
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
        for one in costs.passes
    ]
    price = costs.price
    lines = [f"{price.gpus} GPUs at {price.dollars_per_hour:g} dollars an hour; {FORMULA}"]
    if any(one.input_share is None for one in costs.passes):
        lines.append("The server's /metrics gave no such times: costs are not divided.")
    return "\n\n".join([markdown(head, rows), *lines])


def _dollars(value: float | None) -> str:
    return number(value) if value is None or value >= 1 else f"{value:.3g}"
