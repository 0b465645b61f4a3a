"""A field added to ``engine.request.Request`` arrives at the scheduler and at the speculators, with no other edit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

PROGRAM = """
import asyncio, importlib.util, os, pathlib, sys, types
import engine

path = pathlib.Path(importlib.util.find_spec("engine.request").origin)
last_field = '    id: str = ""'
source = path.read_text()
assert source.count(last_field) == 1
engine.request = sys.modules["engine.request"] = types.ModuleType("engine.request")
edited = source.replace(last_field, '    flavour: str = ""\\n' + last_field)
exec(compile(edited, str(path), "exec"), engine.request.__dict__)

from ray import cloudpickle

from deployments.options import RouterOptions
from deployments.router.draft_client import ActorDraftClient
from deployments.router.lane_connection import TargetClient
from deployments.router.router import Router
from deployments.router.speculator_actor import SpeculatorActor
from engine.request import Request
from engine.sampling.params import SamplingParams
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
from tests.support.submission import submitting
from tests.support.virtual_pipeline import INFO


class Method:
    def __init__(self, method):
        self._method = method

    def remote(self, *arguments):
        self._method(*cloudpickle.loads(cloudpickle.dumps(arguments)))


class Handle:
    def __init__(self, actor):
        self.begin, self.end = Method(actor.begin), Method(actor.end)


async def no_pipeline():
    await asyncio.Event().wait()


async def main():
    actor = SpeculatorActor(SpeculatorOptions())
    draft_client = ActorDraftClient([Handle(actor)], SpeculatorPool(), INFO.spec.vocab_size, 1.0)
    router = Router(RouterOptions("tiny"), INFO, draft_client, [TargetClient("Target", no_pipeline)])
    async with submitting(router.stream) as pair:
        answer = asyncio.create_task(
            pair.answer(Request([5, 6, 7, 5, 6], SamplingParams(max_tokens=4), "pld", flavour="plum"))
        )
        while not actor.n_live() and not answer.done():
            await asyncio.sleep(0.01)
        if answer.done():
            answer.result()
        [sequence] = router.lanes[0].scheduler.sequences
        [(view, _)] = actor._pool._live.values()
        print(sequence.request.flavour, view.request.flavour, sequence.request_so_far.flavour, flush=True)
        os._exit(0)  # nothing of the router is needed any longer


asyncio.run(main())
"""


def test_a_new_field_reaches_the_sequence_and_the_speculator_over_the_real_encodings() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["plum"] * 3
