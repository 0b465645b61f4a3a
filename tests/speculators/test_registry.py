import subprocess
import sys
from pathlib import Path

import pytest

import speculators
from engine.errors import UnknownMethodError
from engine.protocol import BatchSpeculator, Needs, Speculator
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.methods import AVAILABLE, NEEDS_INPUT, STANDALONE, TRAINED
from speculators.mixing.combined import Combined
from speculators.ngrams.pld import PldConfig
from speculators.peers.adapld import AdaPldConfig
from speculators.pld_plus.speculator import PldPlusConfig
from speculators.registry import SpeculatorOptions, available, create
from speculators.spectra.core import SpectraCoreConfig
from speculators.testing import AlwaysRight, AlwaysWrong, HashTarget

ROOT = Path(__file__).resolve().parents[2]


def test_the_speculators_package_is_ours():
    assert speculators.__file__ is not None
    assert Path(speculators.__file__).resolve() == ROOT / "speculators" / "__init__.py"


def test_drafting_on_the_cpu_needs_no_torch():
    modules = "import speculators.pool, speculators.testing, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", modules], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("name", STANDALONE)
def test_available_methods_follow_the_protocol_and_carry_their_name(name):
    speculator = create(name)
    assert isinstance(speculator, Speculator)
    assert speculator.name == name


@pytest.mark.parametrize("name", NEEDS_INPUT)
def test_methods_without_their_input_say_so(name):
    with pytest.raises(UnknownMethodError, match=f"{name}'? needs ") as caught:
        create(name)
    assert caught.value.param == "method"


@pytest.mark.parametrize("method", ["mtp", "pld+mtp"])
def test_a_method_that_no_served_model_has_is_refused_with_the_reason(method):
    with pytest.raises(UnknownMethodError, match="'mtp' is not available: none of the model families") as caught:
        create(method)
    assert caught.value.param == "method"


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_drafters_method_is_that_of_the_drafter_given(name):
    assert create(name, SpeculatorOptions(trained=name)).name == name
    other = next(one for one in TRAINED if one != name)
    with pytest.raises(UnknownMethodError, match=f"the drafter given is of method '{other}'"):
        create(name, SpeculatorOptions(trained=other))


@pytest.mark.parametrize("name", ["", "pld+", "magic", "PLD", "always-right"])
def test_unknown_names_are_refused_with_the_available_ones(name):
    with pytest.raises(UnknownMethodError, match=r"unknown method .*; available: ") as caught:
        create(name)
    assert set(AVAILABLE) <= set(str(caught.value).partition("available: ")[2].split(", "))


def test_a_method_cannot_be_named_twice():
    with pytest.raises(UnknownMethodError, match="twice"):
        create("pld+pld")


def test_a_combination_keeps_its_order_and_merges_needs():
    speculator = create("pld + spectra-core")
    assert isinstance(speculator, Combined)
    assert isinstance(speculator, BatchSpeculator)
    assert speculator.name == "pld+spectra-core"
    assert speculator.needs == Needs(probe_top_k=32)


def test_options_reach_their_method(new_request):
    options = SpeculatorOptions(pld=PldConfig(draft_tokens=1), spectra_core=SpectraCoreConfig(probe_top_k=5))
    assert create("spectra-core", options).needs.probe_top_k == 5
    request = new_request([1, 2, 3, 1])
    assert [list(branch.tokens) for branch in create("pld", options).propose(request, 64)] == [[2]]


def test_speculators_for_tests_come_in_by_argument_only(decode):
    target = HashTarget(40)
    prompt = [1, 2, 3]
    answer = target.generate(prompt, 101)
    extra = {
        "always-right": lambda options: AlwaysRight({tuple(prompt): answer}, depth=4),
        "always-wrong": lambda options: AlwaysWrong({tuple(prompt): answer}, depth=4),
    }
    assert decode(create("always-right", extra=extra), target, prompt, 101) == (answer, 20)
    assert decode(create("always-wrong", extra=extra), target, prompt, 101) == (answer, 100)


@pytest.mark.parametrize("budget", [0, 1, 7, 64])
@pytest.mark.parametrize("method", [*STANDALONE, "pld+spectra-core", "spectra-core+pld", "pld+autoregressive"])
def test_every_method_gives_the_plain_text(decode, method, budget):
    target = HashTarget(48, n_successors=2)
    prompt = [3, 1, 4, 1, 5]
    tokens, n_steps = decode(create(method), target, prompt, 120, budget)
    assert tokens == target.generate(prompt, 120)
    assert n_steps <= 119


def is_made(name, options):
    try:
        create(name, options)
    except UnknownMethodError:
        return False
    return True


@pytest.mark.parametrize(
    "options",
    [
        SpeculatorOptions(),
        SpeculatorOptions(retrieval=lambda: FixedLibrary(MemoryIndex([[1, 2, 3]])), trained="eagle"),
        SpeculatorOptions(adapld=AdaPldConfig(layer=1), pld_plus=PldPlusConfig(layer=1, heads=((0, 0),))),
    ],
)
def test_names_are_available_exactly_when_they_can_be_made(options):
    assert available(options) == tuple(name for name in AVAILABLE if is_made(name, options))
