"""Read-backs for speculators: top ids at probes, nodes and prompt positions, hidden states, attention."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from engine.loop import Completion
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.top_ids import TopIds
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts, reference_tokens, tiny_model

N_TOKENS = 18
TOP = 4
HEADS = ((2, 3), (0, 1), (3, 0), (2, 0), (1, 2))

Draft = Callable[[list[int]], list[Branch]]  # from the future
Heard = tuple[list[int], Outcome]  # context (the outcome's tokens included), outcome


class OutcomeRecorder:
    """Drafts by ``draft``, which knows the future, and records every outcome."""

    name = "listener"

    def __init__(self, needs: Needs, answers: dict[tuple[int, ...], list[int]], draft: Draft) -> None:
        self.needs = needs
        self.heard: dict[int, list[Heard]] = {}
        self._answers = answers
        self._draft = draft

    def begin(self, request: RequestView) -> None:
        self.heard[request.request_id] = []

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        context = request.context.view.tolist()
        future = self._answers[tuple(context[: request.n_prompt])][len(context) - request.n_prompt :]
        return self._draft(future)

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        self.heard[request.request_id].append((request.context.view.tolist(), outcome))

    def end(self, request: RequestView) -> None:
        """Outcomes stay, for the tests."""


def bushy(future: list[int]) -> list[Branch]:
    """Two right tokens with a wrong sibling each, and a wrong and a right probe."""
    if len(future) < 4:
        return []
    wrong = [(token + 1) % 97 for token in future[:2]]
    return [
        Branch([wrong[0], 5], "listener"),
        Branch([*future[:2]], "listener"),
        Branch([future[0], wrong[1]], "listener"),
        Branch([future[0], 9, 10], "listener", probe=True),
        Branch(future[:4], "listener", probe=True),
    ]


def probes_only(future: list[int]) -> list[Branch]:
    """The right tokens, as a probe, and a wrong one."""
    wrong = [(future[0] + 1) % 97] if future else [5]
    return [Branch(future[:3], "listener", probe=True), Branch(wrong, "listener", probe=True)]


def nothing(_: list[int]) -> list[Branch]:
    return []


def listen(
    family: str, needs: Sequence[Needs], draft: Draft, stages: int, chunk: int, **shape: int
) -> list[Completion]:
    """Run a prompt with a listener for each of ``needs``, and check what they observe."""
    texts = random_prompts(len(needs), first=1)
    answers = {tuple(text): reference_tokens(family, tuple(text), N_TOKENS, eos_token_id=0) for text in texts}
    listeners = [OutcomeRecorder(one, answers, draft) for one in needs]
    extra = {f"listener-{i}": lambda _, made=made: made for i, made in enumerate(listeners)}
    options = SchedulerOptions(prefill_chunk=chunk)
    runner = make_engine(make_target(family, stages=stages, **shape), {}, options, extra)
    params = SamplingParams(max_tokens=N_TOKENS, stop_ids=(0,))
    done = complete_all(runner, [Request(text, params, name) for text, name in zip(texts, extra, strict=True)])
    assert [completion.token_ids for completion in done] == list(answers.values())
    for text, listener in zip(texts, listeners, strict=True):
        (heard,) = listener.heard.values()
        assert len(heard) > 3
        check(family, text, listener.needs, heard)
    return done


@cache
def eager(family: str) -> Any:
    copied = copy.deepcopy(tiny_model(family))
    copied.config._attn_implementation = "eager"
    return copied


@torch.inference_mode()
def forward(family: str, text: Sequence[int]) -> Any:
    return eager(family)(torch.tensor([list(text)]), output_hidden_states=True, output_attentions=True)


def check(family: str, text: list[int], needs: Needs, heard: list[Heard]) -> None:
    """Everything that is read back is what Hugging Face computes, in order and without a gap."""
    prompt, whole = forward(family, text).logits[0].log_softmax(-1), forward(family, heard[-1][0])
    ids, logprobs = np.zeros((0, needs.prompt_top_k)), []
    hidden = np.zeros((0, 32), dtype=np.float32)
    for context, outcome in heard:
        check_nodes(family, text, needs, context, outcome)
        if outcome.prompt_top_ids is not None:
            assert outcome.prompt_start == len(ids)
            ids = np.concatenate((ids, outcome.prompt_top_ids))
            logprobs += [] if outcome.prompt_top_logprobs is None else [outcome.prompt_top_logprobs]
        if needs.hidden_layer is not None:
            assert outcome.artefacts is not None
            hidden = np.concatenate((hidden, outcome.artefacts.hidden))  # type: ignore[arg-type]
            assert not outcome.tokens or len(hidden) == len(context) - 1
        if needs.heads and outcome.tokens:
            assert outcome.artefacts is not None
            n = len(context) - 1  # forwarded positions: all but the bonus token
            rows = [whole.attentions[layer][0, head, n - 1, :n].numpy() for layer, head in needs.heads]
            assert np.allclose(outcome.artefacts.attention, np.stack(rows), atol=1e-5)  # type: ignore[arg-type]
    if needs.prompt_top_k:
        best = prompt.topk(needs.prompt_top_k)
        assert ids.tolist() == best.indices.tolist()
        assert bool(logprobs) == needs.top_logprobs
        assert not logprobs or np.concatenate(logprobs) == pytest.approx(best.values.numpy(), abs=1e-4)
    if needs.hidden_layer is not None:
        states = whole.hidden_states[needs.hidden_layer + 1][0, : len(hidden)]
        assert np.allclose(hidden, states, atol=1e-4)


def check_nodes(family: str, text: list[int], needs: Needs, context: list[int], outcome: Outcome) -> None:
    """Top ids of an outcome, and their log-probabilities, are those after every node's path."""
    before = context[: len(context) - len(outcome.tokens)]
    if len(before) > len(text):
        every = range(-1, len(outcome.tree))
        assert set(outcome.top_ids) == set(
            every if needs.node_top_k else outcome.tree.probe_ends if needs.probe_top_k else ()
        )
    top = TopIds.of(outcome.top_ids)
    assert (top.logprobs is not None) == needs.top_logprobs or not top.nodes.size
    for place, node in enumerate(top.nodes.tolist()):
        path = [outcome.tree.tokens[i] for i in outcome.tree.path(node)]
        best = forward(family, before + path).logits[0, -1].log_softmax(-1).topk(needs.node_top_k or needs.probe_top_k)
        assert list(outcome.top_ids[node]) == best.indices.tolist()
        assert outcome.top_ids_after(path) == outcome.top_ids[node]
        assert top.logprobs is None or top.logprobs[place] == pytest.approx(best.values.numpy(), abs=1e-4)


@pytest.mark.parametrize(
    ("family", "needs", "draft", "stages", "chunk"),
    [
        ("llama", Needs(probe_top_k=TOP, heads=HEADS), bushy, 1, 64),
        ("llama", Needs(hidden_layer=0, prompt_top_k=TOP), bushy, 4, 11),
        ("mistral", Needs(probe_top_k=TOP, top_logprobs=True, heads=HEADS), bushy, 2, 20),
        ("qwen2", Needs(node_top_k=TOP, top_logprobs=True, hidden_layer=1), bushy, 2, 7),
        ("qwen2", Needs(node_top_k=TOP, hidden_layer=1, heads=HEADS), nothing, 4, 64),
        ("qwen3", Needs(probe_top_k=TOP, hidden_layer=2), probes_only, 1, 64),
        ("qwen3", Needs(node_top_k=TOP, top_logprobs=True), probes_only, 2, 64),
        ("gemma3", Needs(prompt_top_k=TOP, top_logprobs=True, hidden_layer=2, heads=HEADS), bushy, 2, 7),
    ],
)
def test_read_backs_are_what_hugging_face_computes_and_probes_are_never_accepted(
    family: str, needs: Needs, draft: Draft, stages: int, chunk: int
) -> None:
    done = listen(family, [needs] * 2, draft, stages, chunk)
    most = max(n for one in done for n in one.stats.step_tokens)
    assert most == (3 if draft is bushy else 1), "the right probe has four tokens"
    assert draft is bushy or {(one.stats.drafted_tokens, one.stats.accepted_tokens) for one in done} == {(0, 0)}


def test_nothing_is_read_back_twice_after_a_preemption() -> None:
    needs = [Needs(hidden_layer=1, prompt_top_k=TOP)] * 3
    done = listen("qwen3", needs, bushy, 1, 2, n_blocks=23, block_size=4)
    assert sum(completion.stats.preemptions for completion in done) > 0


def test_needs_may_differ_within_a_batch() -> None:
    needs = [
        Needs(hidden_layer=1, heads=((2, 3), (0, 1))),
        Needs(heads=((2, 0), (0, 1), (2, 2)), node_top_k=2),
        Needs(probe_top_k=TOP, prompt_top_k=3),
    ]
    listen("llama", needs, bushy, 2, 50)
