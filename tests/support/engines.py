"""Engines on tiny models, and checks that finished requests leave nothing."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache

import torch

from engine.loop import Completion, Engine
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.request import Request
from engine.scheduling.scheduler import SchedulerOptions
from engine.step_cost import StepCosts
from engine.target_model.info import TargetInfo
from engine.target_model.local import LocalTarget
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.auto.speculator import Auto
from speculators.corpus.rest import Rest
from speculators.draft_model.config import DraftModelConfig
from speculators.draft_model.runner import DraftModelRunner
from speculators.draft_model.speculator import DraftModel
from speculators.peers.adapld import AdaPld, AdaPldConfig
from speculators.pld_plus.speculator import PldPlusAttention, PldPlusConfig, PldPlusHidden
from speculators.pool import SpeculatorPool
from speculators.registry import Factory
from speculators.spectra.retrieval import SpectraRetrieval
from speculators.spectra.speculator import Spectra
from speculators.successors.speculator import Successors
from speculators.testing import AlwaysRight, AlwaysWrong
from tests.support.tiny_models import tiny_model, tiny_shards

STEP_COSTS = StepCosts({1: ((1, 65), (1.0, 6.0)), 8: ((8, 128), (1.5, 11.0))})  # drafting pays now and then
PLD_PLUS = PldPlusConfig(layer=1, dims=16, heads=((0, 1), (1, 0), (3, 2)))  # heads on every stage


def make_target(family: str, *, stages: int = 1, n_blocks: int = 200, block_size: int = 16) -> LocalTarget:
    """A fresh target on a tiny model."""
    shards = tiny_shards(family, stages)
    return LocalTarget.of_shards(TargetInfo(shards[0].spec, n_blocks, block_size, 500), shards)


@cache
def _shaken_shard(family: str) -> ModelShard:
    """All layers of the tiny model with noise on its weights: its argmax is mostly the original's."""
    model = copy.deepcopy(tiny_model(family))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.03 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    spec = read_spec(model.config)
    return ModelShard(model, spec, split_layers(spec.n_layers, 1)[0], 600)


def make_draft_model(family: str, tree_nodes: int = 0) -> DraftModel:
    """A draft model that is often right about the tiny target of a family; its cache is small."""
    shard = _shaken_shard(family.removesuffix("_text"))
    config = DraftModelConfig(tree_nodes=tree_nodes, tree_beam=3, prefill_chunk=50)
    return DraftModel(config, DraftModelRunner(shard, TargetInfo(shard.spec, 60, 8, 500)))


def library_of(answers: Mapping[tuple[int, ...], Sequence[int]]) -> FixedLibrary:
    """A library of these texts."""
    return FixedLibrary(MemoryIndex([[*prompt, *answer] for prompt, answer in answers.items()]))


def make_engine(
    target: LocalTarget,
    answers: Mapping[tuple[int, ...], Sequence[int]] | None = None,
    options: SchedulerOptions | None = None,
    extra: Mapping[str, Factory] | None = None,
) -> Engine:
    """An engine whose pool also has drafters, and ``always-right`` and ``always-wrong`` by the true ``answers``."""
    known = dict(answers or {})
    factories: dict[str, Factory] = {
        "always-right": lambda _: AlwaysRight(known),
        "always-wrong": lambda _: AlwaysWrong(known),
        "draft-model": lambda _: make_draft_model(target.info.spec.family),
        "draft-tree": lambda _: make_draft_model(target.info.spec.family, tree_nodes=9),
        "auto-costs": lambda _: Auto([Successors()], STEP_COSTS),
        "adapld": lambda _: AdaPld(AdaPldConfig(layer=1, dims=16)),
        "pld-plus-h": lambda _: PldPlusHidden(PLD_PLUS),
        "pld-plus-a": lambda _: PldPlusAttention(PLD_PLUS),
        "rest": lambda _: Rest(library_of(known)),
        "spectra-retrieval": lambda _: SpectraRetrieval(library_of(known)),
        "spectra": lambda _: Spectra(retrieval=SpectraRetrieval(library_of(known))),
        **(extra or {}),
    }
    return Engine(target, SpeculatorPool(extra=factories), options)


def complete_all(engine: Engine, jobs: Sequence[Request], batch_size: int = 8) -> list[Completion]:
    """Completions in the order of the jobs; checks that nothing is left."""
    done = dict(engine.run(jobs, batch_size))
    check_idle(engine)
    return [done[i] for i in range(len(jobs))]


def check_idle(engine: Engine) -> None:
    """Assert that no block, no state of a stage and no state of a speculator is left."""
    blocks = engine.scheduler.blocks
    blocks.check_integrity()
    assert blocks.n_free == blocks.n_blocks
    assert isinstance(engine.target, LocalTarget)
    assert engine.target.n_sequences == 0
    assert engine.pool.n_live == 0
    assert (engine.scheduler.n_running, engine.scheduler.n_waiting) == (0, 0)
