"""Runs a load with each number of clients and, for costs, again without speculation; prints what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from app.load.costs import RunCosts, is_drafting, with_new_salt
from app.load.figures import LoadFigures, figures
from app.load.report import document, notes, publish, tables, write_requests
from app.load.run import LoadRun, run
from app.load.settings import LoadProfile, RequestPlan


@dataclass
class LoadPasses:
    """The passes of a run so far, and what is wrong with them."""

    costs: RunCosts | None  # None: no price
    shown: list[str] = field(default_factory=list)
    documents: list[dict[str, Any]] = field(default_factory=list)  # of the passes as requested
    problems: list[str] = field(default_factory=list)

    def measure(self, load: LoadProfile, plan: RequestPlan, name: str) -> tuple[LoadFigures, LoadRun]:
        ran = run(load, plan)
        found = figures(ran.records, load.slo, plan.common.get("temperature") == 0)
        kinds = ", ".join(f"{kind}: {n}" for kind, n in found.errors.items())
        problems = [f"{found.failed} of {found.requests} requests failed ({kinds})"] if found.failed else []
        problems += [line for line in notes(found, ran) if line.startswith("DIVERGED")]
        self.problems += [f"{name}{problem}" for problem in problems]
        if self.costs is not None:
            self.costs.add(load.label, found, ran.phases)
        return found, ran

    def show(self, text: str) -> None:
        self.shown.append(text)
        print(text, end="\n\n", flush=True)


def run_passes(
    load: LoadProfile,
    plan: RequestPlan,
    counts: Sequence[int | None],
    costs: RunCosts | None,
    folder: Path | None,
    file: Path | None,
) -> list[str]:
    """Run the load with each of ``counts`` clients (None: an open loop), print and write its report; return problems.

    The first pass sends the requests of ``plan``. Each later one has a salt of its own, so that it does not find what
    earlier ones cached, if the server reports speculation (others may refuse a salt).
    """
    passes, has_several, is_ours = LoadPasses(costs), len(counts) > 1, False
    for count in counts:
        one, name = replace(load, concurrency=count), f"concurrency {count}: " if has_several else ""
        asked = with_new_salt(plan) if is_ours else plan
        found, ran = passes.measure(one, asked, name)
        is_ours |= found.speculation is not None
        passes.show(tables(one, found, ran))
        passes.documents.append(document(one, asked.common, found, ran))
        if folder is not None:
            write_requests(ran.records, folder / f"concurrency-{count}" if has_several else folder, load.slo)
        if costs is not None and is_drafting(found):
            plain = with_new_salt(plan, speculative={"enabled": False})
            passes.measure(one, plain, f"{name}without speculation: ")
    whole: dict[str, Any] = {"loads": passes.documents} if has_several else passes.documents[0]
    if costs is not None:
        passes.show(costs.table(is_open_loop=load.concurrency is None))
        whole["costs"] = msgspec.to_builtins(costs)
    publish(whole, passes.shown, folder, file)
    return passes.problems
