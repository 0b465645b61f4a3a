"""Processes that compute nothing start without torch: a router, the replica of a target; so does the configuration."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from app.composition.pipeline import pipeline_options, router_options, target_options
from app.composition.speculation import placement, speculator_options
from app.config.serve import ServeConfig
from app.demo.paths import DEMO_TARGET
from app.inputs.tokenizers import load_tokenizer
from deployments.pipeline.endpoints import Endpoints
from engine.target.loading import describe_target

LOADED = "import sys; print(*sorted({'torch', 'transformers', 'accelerate', 'safetensors'} & set(sys.modules)))"

ROUTER = """
import pickle, sys
import deployments.router.deployment
from deployments.pipeline.frames import encode_frame
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence
from speculators.pool import SpeculatorPool

options, speculators, placement, endpoints = pickle.loads(sys.stdin.buffer.read())
pool = SpeculatorPool(speculators)
scheduler = Scheduler(endpoints.info, options.scheduler)
for seq, method in enumerate(("auto", "pld", "anpd", "lookahead", "spectra-core", "suffix", "token-recycling")):
    params = SamplingParams(max_tokens=8)
    pool.begin(seq, Request([5, 6, 7, 5, 6], params, method), endpoints.info.spec.vocab_size)
    assert pool.advance([], {seq: 4}) is not None
    pool.needs(method)
scheduler.submit(Sequence.of(9, Request([5, 6, 7], params, max_nodes=4)))
step = scheduler.next_step(1, 0)
assert [work.tokens for work in step.work] == [[5, 6, 7]]
assert encode_frame(step, None)
"""

TARGET = """
import pickle, sys
import deployments.target.deployment
from engine.model.resolve import resolve

target, pipeline = pickle.loads(sys.stdin.buffer.read())
assert resolve(target.model).is_dir()
assert deployments.target.deployment.replica_placement(pipeline, target.stages, 0.1)
"""

EDGE = """
import sys
from pathlib import Path
import app.api.edge
from app.inputs.tokenizers import load_tokenizer

tokenizer = load_tokenizer(Path(sys.argv[1]))
assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
assert tokenizer.decode(tokenizer.encode("a b", add_special_tokens=False)) == "a b"
"""

CONFIG = """
from app.composition.checks import checked
from app.composition.pipeline import router_options, target_options
from app.composition.retrieval import library
from app.composition.speculation import placement, speculator_options
from app.config.serve import ServeConfig

config = ServeConfig(model="demo", stages=2, layer_split="2,2", draft_model="demo", retrieval="builtin")
config = checked(config)
assert target_options(config) and router_options(config) and speculator_options(config) and library(config)
assert placement(config)
"""


def loaded_by(code: str, given: object = None, *arguments: str) -> str:
    """What of ``LOADED`` a fresh interpreter has loaded once it has run ``code`` with ``given`` on its input."""
    done = subprocess.run(
        [sys.executable, "-c", code + LOADED, *arguments], input=pickle.dumps(given), capture_output=True, timeout=400
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.fixture(scope="module")
def config(tiny_checkpoint: Path) -> ServeConfig:
    return ServeConfig(model=str(tiny_checkpoint), method="auto", kv_gib=0.01)


def test_a_router_drafts_and_forms_steps_without_torch(config: ServeConfig) -> None:
    info = describe_target(target_options(config), Path(config.model))
    endpoints = Endpoints("unix:/first", "unix:/last", b"secret", info)
    given = (router_options(config), speculator_options(config), placement(config), endpoints)
    assert loaded_by(ROUTER, given) == ""


def test_a_target_replica_owns_its_stages_without_torch(config: ServeConfig) -> None:
    assert loaded_by(TARGET, (target_options(config), pipeline_options(config))) == ""


def test_an_ingress_reads_and_writes_texts_without_torch(config: ServeConfig) -> None:
    assert loaded_by(EDGE, None, config.model) == "transformers"


def test_a_generic_tokenizer_is_the_one_that_transformers_chooses(tiny_checkpoint: Path) -> None:
    for path in (tiny_checkpoint, DEMO_TARGET):
        ours, theirs = load_tokenizer(path), AutoTokenizer.from_pretrained(path)
        assert type(ours) is type(theirs)
        assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
        assert ours.chat_template == theirs.chat_template
        assert ours.special_tokens_map == theirs.special_tokens_map


def test_the_configuration_is_read_without_torch() -> None:
    assert loaded_by(CONFIG) == ""


def test_the_model_of_a_stage_does_load_torch(config: ServeConfig) -> None:
    code = f"from pathlib import Path\nfrom engine.model.loader import load_spec\nload_spec(Path({config.model!r}))\n"
    assert loaded_by(code) == "accelerate safetensors torch transformers"
