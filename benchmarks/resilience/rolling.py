"""Every deployment is replaced by ``serve deploy`` while seeded streams run: does any text change, is any lost?

Starts a Ray cluster with a dashboard, deploys the application from a Serve config file (two stages, live retrieval),
and asks --streams questions once, undisturbed. Then every client asks its own question again and again (half of them
greedy, half sampled, with six methods) while one changed config after the other is deployed:

    Ingress, Router, Target, Retrieval    other resources for that deployment, which Serve can only give to new replicas
    application                           other args with the same model: Serve replaces every replica

Columns, in seconds after the deployment of the config:

    replaced           no replica of before takes requests any more, and as many new ones do
    gone               the last replica of before has ended
    not ready          from when to when /ready said so
    longest pause      of any stream
    recovered          the end of the last pause above 0.5 s: every stream flows again
    broken streams     answers that broke off or failed; there must be none
    sent again         requests on an idle connection that HAProxy closed as they came: clients open another, as
                       HTTP libraries do. No answer had begun

Exit status 1: a request failed, a text differs from the undisturbed one, a stream broke, a replica was not replaced, or
sessions or blocks are left over. With --out: timeline.png, tables.md, result.json. The last line of stdout is one JSON
document.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from tqdm import tqdm

from app.inputs.default_model import DEFAULT_MODEL
from app.load.records import Break
from app.load.stream import REFUSED
from benchmarks.resilience.observation import ask_ready, left_over, sampled
from benchmarks.resilience.phases import Phase
from benchmarks.resilience.recovery import FLOW_S, SETTLE_S, question, report
from benchmarks.resilience.streams import ClientStreams
from benchmarks.support.ray_head import RayHead
from benchmarks.support.reporting import BenchmarkReport

APPLICATION = "application"
UPDATES = ("Ingress", "Router", "Target", "Retrieval", APPLICATION)
RETRIES = 5  # of one request
UP_S = 300.0  # longest wait for a deployment
CPUS = 0.1  # of a replica, as ``app.builder`` has it; each update takes a little off
COLUMNS = {
    "update": "update of",
    "replaced_seconds": "replaced s",
    "gone_seconds": "gone s",
    "not_ready": "not ready s",
    "longest_pause": "longest pause s",
    "recovered_seconds": "recovered s",
    "broken_streams": "broken streams",
    "sent_again": "sent again",
    "notes": "notes",
}
Replicas = dict[str, str]  # id -> state


@dataclass
class Update(Phase):
    """The deployment of a changed config."""

    replaced: float | None = None  # seconds
    gone: float | None = None  # seconds


@dataclass
class RollingDeployment:
    """The application in its cluster, deployed by config files.

    Args:
        head: the cluster.
        args: of ``build_app``.
    """

    head: RayHead
    args: dict[str, Any]
    cpus: dict[str, float] = field(default_factory=dict)  # of replicas, by deployment

    def change(self, name: str) -> None:
        """Change the config so that Serve replaces the deployment, or all."""
        if name == APPLICATION:
            self.args = self.args | {"max_waiting": self.args["max_waiting"] + 1}
        else:
            self.cpus[name] = round(self.cpus.get(name, CPUS) - 0.001, 3)

    def deploy(self) -> None:
        """``serve deploy`` of the config as it is now."""
        options = [{"name": name, "ray_actor_options": {"num_cpus": cpus}} for name, cpus in self.cpus.items()]
        application = {"name": "spectra", "import_path": "spectra_serve:build_app", "args": self.args}
        self.head.deploy({"applications": [application | {"deployments": options}]})

    async def replicas(self, session: aiohttp.ClientSession, update: str) -> Replicas:
        """Replicas that an update replaces."""
        url = f"{self.head.dashboard}/api/serve/applications/"
        async with session.get(url, headers=self.head.headers) as response:
            found = (await response.json())["applications"]["spectra"]["deployments"]
        return {
            replica["replica_id"]: replica["state"]
            for name, deployment in found.items()
            if update in (APPLICATION, name)
            for replica in deployment["replicas"]
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--streams", type=int, default=32, help="clients (default: 32)")
    parser.add_argument("--stages", type=int, default=2, help="of the pipeline (default: 2)")
    parser.add_argument("--max-tokens", type=int, default=200, help="of an answer (default: 200)")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds, as of spectra serve (default: 5)")
    parser.add_argument("--calm", type=float, default=3.0, help="seconds from recovery to the next update (default: 3)")
    parser.add_argument("--only", help=f"updates, comma-separated, of {', '.join(UPDATES)}")


def run(settings: argparse.Namespace) -> BenchmarkReport:
    """Start a cluster and measure it."""
    names = settings.only.split(",") if settings.only else list(UPDATES)
    if unknown := [name for name in names if name not in UPDATES]:
        settings.fail(f"--only names {', '.join(unknown)}; there are {', '.join(UPDATES)}")
    args = {
        "model": settings.model,
        "stages": settings.stages,
        "max_sequences": settings.streams,
        "grace": settings.grace,
        "max_waiting": 256,
        "live": "live",
    }
    with RayHead() as head:
        return asyncio.run(_measure(settings, RollingDeployment(head, args), names))


async def _measure(settings: argparse.Namespace, site: RollingDeployment, names: Sequence[str]) -> BenchmarkReport:
    await asyncio.to_thread(site.deploy)
    await _until_ready(site.head.url)
    bodies = [question(settings.model, client, settings.max_tokens) for client in range(settings.streams)]
    streams = ClientStreams(site.head.url, len(bodies), lambda client: (client, bodies[client]), RETRIES)
    print(f"{streams.n} streams undisturbed: {await streams.learn_reference(bodies, len(bodies)):.1f} s", flush=True)
    async with (
        aiohttp.ClientSession() as session,
        sampled(site.head.url, site.head.pid, period=0.1) as samples,
        streams.running(),
    ):
        updates = [await _go_through(name, streams, site, session, settings.calm) for name in tqdm(names, "updates")]
    leaks = await left_over(site.head.url, SETTLE_S)
    return report("updates", COLUMNS, updates, _row, streams, samples, leaks)


async def _until_ready(url: str) -> None:
    deadline = time.monotonic() + UP_S
    async with aiohttp.ClientSession() as session:
        while not await ask_ready(session, url):
            if time.monotonic() > deadline:
                raise SystemExit(f"the application did not become ready within {UP_S:.0f} s")
            await asyncio.sleep(0.2)


async def _go_through(
    name: str, streams: ClientStreams, site: RollingDeployment, session: aiohttp.ClientSession, calm: float
) -> Update:
    """Deploy a change while all clients receive text, and wait until they do and every replica is replaced."""
    update = Update(name, time.monotonic())
    await streams.all_flow(FLOW_S)
    before = await site.replicas(session, name)
    site.change(name)
    await asyncio.to_thread(site.deploy)
    update.acted = time.monotonic()
    await _replaced(update, site, session, before)
    if not await streams.all_flow(FLOW_S):
        update.wrong.append(f"not every stream went on within {FLOW_S:.0f} s")
    await asyncio.sleep(calm)
    update.ended = time.monotonic()
    return update


async def _replaced(update: Update, site: RollingDeployment, session: aiohttp.ClientSession, before: Replicas) -> None:
    while update.gone is None and time.monotonic() < update.acted + UP_S:
        now = await site.replicas(session, update.name)
        running = {one for one, state in now.items() if state == "RUNNING"}
        if update.replaced is None and len(running) >= len(before) and not running & before.keys():
            update.replaced = time.monotonic() - update.acted
        if update.replaced is not None and not now.keys() & before.keys():
            update.gone = time.monotonic() - update.acted
        await asyncio.sleep(0.1)
    if update.gone is None:
        update.wrong.append(f"not every replica was replaced within {UP_S:.0f} s")


def _row(update: Update, broken: list[Break]) -> dict[str, Any]:
    kinds = [found.kind for found in broken]
    n_again = kinds.count(REFUSED)
    if n_broken := len(kinds) - n_again:
        update.wrong.append(f"{n_broken} streams broke")
    return {
        "update": update.name,
        "replaced_seconds": None if update.replaced is None else round(update.replaced, 2),
        "gone_seconds": None if update.gone is None else round(update.gone, 2),
        "broken_streams": n_broken,
        "sent_again": n_again,
    }
