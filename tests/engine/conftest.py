"""Tiny models of every family, built in code: nothing is downloaded, nothing is shipped for tests.

Tests cannot import this file, so what they share comes as session fixtures that return functions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.loop import Completion, Engine
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.request import Request
from engine.scheduling.scheduler import SchedulerOptions
from engine.step_cost import StepCosts
from engine.target.info import TargetInfo
from engine.target.local import LocalTarget
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.corpus.rest import Rest
from speculators.draft_model.drafter import Drafter
from speculators.draft_model.speculator import DraftModel, DraftModelConfig
from speculators.mixing.auto import Auto
from speculators.pld_plus.speculator import PldPlusAttention, PldPlusConfig, PldPlusHidden
from speculators.pool import SpeculatorPool
from speculators.registry import Factory
from speculators.spectra.retrieval import SpectraRetrieval
from speculators.spectra.speculator import Spectra
from speculators.successors.speculator import Successors
from speculators.testing import AlwaysRight, AlwaysWrong

torch.set_num_threads(1)

VOCAB = 97
STEP_COSTS = StepCosts({1: ((1, 65), (1.0, 6.0)), 8: ((8, 128), (1.5, 11.0))})  # drafting pays now and then
PLD_PLUS = PldPlusConfig(layer=1, dims=16, heads=((0, 1), (1, 0), (3, 2)))  # heads on every stage
WINDOW = 24  # tokens; prompts of the tests are longer

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # wide: logits of a tiny random model must not tie within fp32 noise
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _llama() -> Any:
    return LlamaForCausalLM(LlamaConfig(**_COMMON, num_key_value_heads=2))


def _mistral() -> Any:
    return MistralForCausalLM(MistralConfig(**_COMMON, num_key_value_heads=1, head_dim=8, sliding_window=WINDOW))


def _qwen2() -> Any:
    config = Qwen2Config(
        **_COMMON, num_key_value_heads=2, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2
    )
    return Qwen2ForCausalLM(config)


def _qwen3() -> Any:
    return Qwen3ForCausalLM(Qwen3Config(**_COMMON, num_key_value_heads=4, head_dim=16, tie_word_embeddings=True))


def _gemma3() -> Any:
    config = Gemma3TextConfig(
        **{**_COMMON, "initializer_range": 0.1},
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 2,
        final_logit_softcapping=30.0,
        query_pre_attn_scalar=16,
    )
    return Gemma3ForCausalLM(config)


_MAKERS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}
FAMILIES = tuple(_MAKERS)


@lru_cache
def tiny_model(family: str) -> Any:
    """A seeded fp32 model; the same object for a whole test session, never changed by tests."""
    torch.manual_seed(7)
    model = _MAKERS[family]()
    # Hugging Face starts norms and biases at constants: random ones make a wrong norm or bias visible.
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=0.0 if family == "gemma3" else 1.0, std=0.2)
    return model.float().eval()


@lru_cache
def reference_tokens(family: str, prompt: tuple[int, ...], n: int, **kwargs: Any) -> list[int]:
    """What Hugging Face ``generate`` writes greedily, EOS included."""
    ids = torch.tensor([prompt])
    out = tiny_model(family).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False, **kwargs
    )
    return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def random_prompt(seed: int, n: int) -> list[int]:
    """A prompt that repeats itself here and there, so that n-gram methods have something to find."""
    generator = torch.Generator().manual_seed(seed)
    motif = torch.randint(3, VOCAB, (7,), generator=generator).tolist()
    tokens: list[int] = []
    while len(tokens) < n:
        tokens += torch.randint(3, VOCAB, (4,), generator=generator).tolist() + motif
    return tokens[:n]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory of a saved tiny model; made once per family."""
    made: dict[str, Path] = {}

    def save(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            tiny_model(family).save_pretrained(made[family])
        return made[family]

    return save


@lru_cache
def _shards(family: str, n_stages: int) -> tuple[ModelShard, ...]:
    """Shards of a copy of the tiny model; they hold weights only, so targets share them."""
    model = copy.deepcopy(tiny_model(family))
    spec = read_spec(model.config)
    return tuple(ModelShard(model, spec, layers, 600) for layers in split_layers(spec.n_layers, n_stages))


def make_target(
    family: str, *, stages: int = 1, reference: bool = False, n_blocks: int = 200, block_size: int = 16
) -> LocalTarget:
    """A fresh target on a tiny model."""
    shards = _shards(family, stages)
    return LocalTarget(TargetInfo(shards[0].spec, n_blocks, block_size, 500), shards, reference)


@lru_cache
def _shaken_shard(family: str) -> ModelShard:
    """All layers of the tiny model with its weights shaken: its argmax is the original's more often than not."""
    model = copy.deepcopy(tiny_model(family))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.03 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    spec = read_spec(model.config)
    return ModelShard(model, spec, split_layers(spec.n_layers, 1)[0], 600)


def make_draft_model(family: str, tree_nodes: int = 0) -> DraftModel:
    """A drafter that is often right about the tiny target of a family; its cache is tight."""
    shard = _shaken_shard(family.removesuffix("_text"))
    config = DraftModelConfig(tree_nodes=tree_nodes, tree_beam=3, prefill_chunk=50)
    return DraftModel(config, Drafter(shard, TargetInfo(shard.spec, 60, 8, 500)))


def library_of(answers: Mapping[tuple[int, ...], Sequence[int]]) -> FixedLibrary:
    """What a corpus of these texts answers."""
    return FixedLibrary(MemoryIndex([[*prompt, *answer] for prompt, answer in answers.items()]))


def make_engine(
    target: LocalTarget,
    answers: Mapping[tuple[int, ...], Sequence[int]] | None = None,
    options: SchedulerOptions | None = None,
    extra: Mapping[str, Factory] | None = None,
) -> Engine:
    """An engine whose pool also knows drafters, and ``always-right`` and ``always-wrong``, given true ``answers``."""
    known = dict(answers or {})
    factories: dict[str, Factory] = {
        "always-right": lambda _: AlwaysRight(known),
        "always-wrong": lambda _: AlwaysWrong(known),
        "draft-model": lambda _: make_draft_model(target.info.spec.family),
        "draft-tree": lambda _: make_draft_model(target.info.spec.family, tree_nodes=9),
        "auto-costs": lambda _: Auto([Successors()], STEP_COSTS),
        "pld-plus-h": lambda _: PldPlusHidden(PLD_PLUS),
        "pld-plus-a": lambda _: PldPlusAttention(PLD_PLUS),
        "rest": lambda _: Rest(library_of(known)),
        "spectra-retrieval": lambda _: SpectraRetrieval(library_of(known)),
        "spectra": lambda _: Spectra(retrieval=SpectraRetrieval(library_of(known))),
        **(extra or {}),
    }
    return Engine(target, SpeculatorPool(extra=factories), options)


def complete_all(engine: Engine, jobs: Sequence[Request], batch_size: int = 8) -> list[Completion]:
    """Completions in the order of the jobs; afterwards nothing may be left anywhere."""
    done = dict(engine.run(jobs, batch_size))
    check_idle(engine)
    return [done[i] for i in range(len(jobs))]


def check_idle(engine: Engine) -> None:
    """Assert that no block, no stage state and no speculator state is left behind."""
    blocks = engine.scheduler.blocks
    blocks.check_integrity()
    assert blocks.n_free == blocks.n_blocks
    assert isinstance(engine.target.local, LocalTarget)
    assert engine.target.local.n_sequences == 0
    assert engine.pool.n_live == 0
    assert (engine.scheduler.n_running, engine.scheduler.n_waiting) == (0, 0)


@pytest.fixture(scope="session")
def model() -> Callable[[str], Any]:
    """``model(family)``: see ``tiny_model``."""
    return tiny_model


@pytest.fixture(scope="session")
def generate() -> Callable[..., list[int]]:
    """``generate(family, prompt, n, **kwargs)``: see ``reference_tokens``."""
    return reference_tokens


@pytest.fixture(scope="session")
def prompts() -> Callable[..., list[list[int]]]:
    """``prompts(n, first=0)``: prompts of growing length, all longer than the sliding window."""
    return lambda n, first=0: [random_prompt(i, 30 + 7 * i) for i in range(first, first + n)]


@pytest.fixture(scope="session")
def shards() -> Callable[[str, int], tuple[ModelShard, ...]]:
    """``shards(family, n_stages)``: weights of the tiny model, split."""
    return _shards


@pytest.fixture(scope="session")
def target() -> Callable[..., LocalTarget]:
    """``target(family, ...)``: see ``make_target``."""
    return make_target


@pytest.fixture(scope="session")
def engine() -> Callable[..., Engine]:
    """``engine(target, answers, options, extra)``: see ``make_engine``."""
    return make_engine


@pytest.fixture(scope="session")
def complete() -> Callable[..., list[Completion]]:
    """``complete(engine, jobs, batch_size)``: see ``complete_all``."""
    return complete_all


@pytest.fixture(scope="session")
def idle() -> Callable[[Engine], None]:
    """``idle(engine)``: see ``check_idle``."""
    return check_idle
