"""Needs that no stage can serve are refused; hidden states may be projected before they travel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import ConfigError, RequestError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.request_validation import check_needs
from engine.scheduling.scheduler import SchedulerOptions
from engine.stage.artefacts import project
from tests.support.engines import check_idle, complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts


class HiddenStateRecorder:
    """Keeps the hidden states it observes; drafts a wrong token and a guess."""

    name = "listener"

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.hidden: list[np.ndarray[Any, Any]] = []

    def begin(self, request: RequestView) -> None: ...

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        context = request.context.view.tolist()
        return [Branch([5, 6], "listener"), Branch(context[-8:-5], "listener")]

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        if outcome.artefacts is not None and outcome.artefacts.hidden is not None:
            self.hidden.append(outcome.artefacts.hidden)

    def end(self, request: RequestView) -> None: ...


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        (Needs(hidden_layer=4), "hidden_layer is 4; this model has layers 0 to 3"),
        (Needs(hidden_layer=-1), "hidden_layer is -1"),
        (Needs(heads=((0, 0), (4, 0))), r"heads contains \(4, 0\); .* to \(3, 3\)"),
        (Needs(heads=((0, 4),)), r"heads contains \(0, 4\)"),
        (Needs(heads=((-1, 0),)), r"heads contains \(-1, 0\)"),
    ],
)
def test_a_need_that_the_model_cannot_serve_is_refused(needs: Needs, message: str) -> None:
    engine = make_engine(make_target("llama"), extra={"listener": lambda _: HiddenStateRecorder(needs)})
    with pytest.raises(RequestError, match=f"method 'listener': {message}") as refused:
        engine.submit(Request([3, 4, 5], SamplingParams(max_tokens=4), "listener"))
    assert refused.value.param == "method"
    check_idle(engine)
    with pytest.raises(ConfigError, match=f"method: {message}"):
        check_needs(needs, make_target("llama").info.spec)


@pytest.mark.parametrize("stages", [1, 4])
def test_projected_states_are_the_projection_of_the_states(stages: int) -> None:
    dims = {"whole": 0, "small": 6, "smaller": 3, "none": None}
    listeners = {
        name: HiddenStateRecorder(
            Needs() if n is None else Needs(hidden_layer=3, hidden_dims=n, heads=((3, 3), (0, 0)))
        )
        for name, n in dims.items()
    }
    extra = {name: lambda _, made=made: made for name, made in listeners.items()}
    text = random_prompts(1)[0]
    # Alone, the small ones travel projected; together with the others, whole up to the last stage.
    for together in ([["whole"], ["small"], ["smaller"], ["none"]], [list(dims)]):
        for listener in listeners.values():
            listener.hidden.clear()
        for names in together:
            runner = make_engine(make_target("llama", stages=stages), {}, SchedulerOptions(prefill_chunk=50), extra)
            complete_all(runner, [Request(text, SamplingParams(max_tokens=12), name) for name in names])
        states = {name: np.concatenate(listener.hidden) for name, listener in listeners.items() if listener.hidden}
        assert {name: array.shape[1] for name, array in states.items()} == {"whole": 32, "small": 6, "smaller": 3}
        for name in ("small", "smaller"):
            expected = project(torch.from_numpy(states["whole"]), dims[name]).numpy()
            assert np.allclose(states[name], expected, atol=1e-4)
