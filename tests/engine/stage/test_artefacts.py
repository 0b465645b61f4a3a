"""What a speculator can have read back: top ids at probes, nodes and prompt positions, hidden states, attention."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
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

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
N_TOKENS = 18
TOP = 4

Model = Callable[[str], Any]
Draft = Callable[[list[int]], list[Branch]]  # from the future
Heard = tuple[list[int], Outcome]  # context (the outcome's tokens included), outcome


class Listener:
    """Drafts what ``draft`` says, given the future, and writes down every outcome."""

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
        """What was heard stays, for the tests."""


def bushy(future: list[int]) -> list[Branch]:
    """Two right tokens with a wrong sibling each, one probe that leaves them, one that is the whole truth."""
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
    """The truth, as a probe, and a lie of one token."""
    lie = [(future[0] + 1) % 97] if future else [5]
    return [Branch(future[:3], "listener", probe=True), Branch(lie, "listener", probe=True)]


def nothing(_: list[int]) -> list[Branch]:
    return []


@pytest.fixture
def listen() -> Callable[..., tuple[list[Completion], list[list[Heard]]]]:
    """Run three prompts with a listener: completions and what was heard, both in order."""

    def run(
        family: str, needs: Needs, draft: Draft, options: SchedulerOptions | None = None, **shape: int
    ) -> tuple[list[Completion], list[list[Heard]]]:
        texts = random_prompts(3, first=1)
        answers = {tuple(text): reference_tokens(family, tuple(text), N_TOKENS, eos_token_id=0) for text in texts}
        listener = Listener(needs, answers, draft)
        runner = make_engine(make_target(family, **shape), {}, options, {"listener": lambda _: listener})
        params = SamplingParams(max_tokens=N_TOKENS, stop_ids=(0,))
        done = complete_all(runner, [Request(text, params, "listener") for text in texts], 3)
        assert [completion.token_ids for completion in done] == list(answers.values())
        return done, [listener.heard[seq] for seq in range(3)]

    return run


@lru_cache
def eager(model: Model, family: str) -> Any:
    copied = copy.deepcopy(model(family))
    copied.config._attn_implementation = "eager"
    return copied


def forward(model: Any, text: Sequence[int], **wanted: bool) -> Any:
    with torch.inference_mode():
        return model(torch.tensor([list(text)]), **wanted)


def best(model: Any, text: Sequence[int]) -> list[int]:
    """Top ids behind ``text``."""
    return forward(model, text).logits[0, -1].topk(TOP).indices.tolist()  # type: ignore[no-any-return]


def before(context: list[int], outcome: Outcome) -> list[int]:
    """The context the tree hung from."""
    return context[: len(context) - len(outcome.tokens)]


@pytest.mark.parametrize("family", FAMILIES)
def test_probes_are_read_back_and_nothing_else(family: str, listen: Any) -> None:
    done, heard = listen(family, Needs(probe_top_k=TOP), bushy, stages=2)
    for context, outcome in (one for text in heard for one in text if len(one[1].tree)):
        assert set(outcome.top_ids) == set(outcome.tree.probe_ends)
        for node, ids in outcome.top_ids.items():
            path = [outcome.tree.tokens[i] for i in outcome.tree.path(node)]
            assert list(ids) == best(tiny_model(family), before(context, outcome) + path)
            assert outcome.top_ids_after(path) == ids
    assert max(n for completion in done for n in completion.stats.step_tokens) == 3  # never the probe's four


def test_a_probe_that_is_the_truth_is_never_accepted(listen: Any) -> None:
    done, heard = listen("qwen3", Needs(probe_top_k=TOP), probes_only)
    for completion in done:
        assert set(completion.stats.step_tokens) == {1}
        assert (completion.stats.drafted_tokens, completion.stats.accepted_tokens) == (0, 0)
    trees = [(context, outcome) for text in heard for context, outcome in text if len(outcome.tree)]
    for context, outcome in trees:
        path = [outcome.tree.tokens[i] for i in outcome.tree.path(max(outcome.top_ids))]
        assert outcome.accepted == []
        assert list(outcome.top_ids_after(path)) == best(tiny_model("qwen3"), before(context, outcome) + path)


@pytest.mark.parametrize("draft", [bushy, probes_only, nothing])
def test_ids_of_all_nodes_and_the_root(draft: Draft, listen: Any) -> None:
    _, heard = listen("qwen2", Needs(node_top_k=TOP), draft)
    n_trees = 0
    for context, outcome in (one for text in heard for one in text[1:]):
        n_trees += 1
        assert set(outcome.top_ids) == set(range(-1, len(outcome.tree)))
        for node, ids in outcome.top_ids.items():
            path = [outcome.tree.tokens[i] for i in outcome.tree.path(node)]
            assert list(ids) == best(tiny_model("qwen2"), before(context, outcome) + path)
    assert n_trees > 3


@pytest.mark.parametrize("needs", [Needs(node_top_k=TOP, top_logprobs=True), Needs(probe_top_k=TOP, top_logprobs=True)])
def test_log_probabilities_of_nodes_come_with_their_ids(needs: Needs, listen: Any) -> None:
    _, heard = listen("qwen2", needs, bushy)
    n_nodes = 0
    for context, outcome in (one for text in heard for one in text[1:]):
        top = TopIds.of(outcome.top_ids)
        if not top:
            continue
        assert top.logprobs is not None
        for node, values in zip(top.nodes.tolist(), top.logprobs.tolist(), strict=True):
            path = [outcome.tree.tokens[i] for i in outcome.tree.path(node)]
            logits = forward(tiny_model("qwen2"), before(context, outcome) + path).logits[0, -1]
            wanted = logits.log_softmax(-1)[list(outcome.top_ids[node])]
            assert values == pytest.approx(wanted.tolist(), abs=1e-4)
            n_nodes += 1
    assert n_nodes > 3


def test_log_probabilities_of_the_prompt_come_with_its_ids(listen: Any) -> None:
    needs = Needs(prompt_top_k=TOP, top_logprobs=True)
    _, heard = listen("gemma3", needs, bushy, SchedulerOptions(prefill_chunk=7), stages=2)
    for text, outcomes in zip(random_prompts(3, first=1), heard, strict=True):
        values = [o.prompt_top_logprobs for _, o in outcomes if o.prompt_top_logprobs is not None]
        wanted = forward(tiny_model("gemma3"), text).logits[0].log_softmax(-1).topk(TOP).values
        assert np.concatenate(values) == pytest.approx(wanted.numpy(), abs=1e-4)


@pytest.mark.parametrize("chunk", [7, 64])
def test_ids_at_every_prompt_position(chunk: int, listen: Any) -> None:
    _, heard = listen("gemma3", Needs(prompt_top_k=TOP), bushy, SchedulerOptions(prefill_chunk=chunk), stages=2)
    for text, outcomes in zip(random_prompts(3, first=1), heard, strict=True):
        rows = gather([outcome for _, outcome in outcomes])
        wanted = forward(tiny_model("gemma3"), text).logits[0].topk(TOP).indices
        assert rows.tolist() == wanted.tolist()


def gather(outcomes: list[Outcome]) -> np.ndarray[Any, Any]:
    """Prompt ids of all chunks; they must come in order and without a gap."""
    chunks = [outcome for outcome in outcomes if outcome.prompt_top_ids is not None]
    rows: list[np.ndarray[Any, Any]] = []
    for chunk in chunks:
        assert chunk.prompt_start == sum(map(len, rows))
        assert chunk.prompt_top_ids is not None
        rows.append(chunk.prompt_top_ids)
    return np.concatenate(rows)


@pytest.mark.parametrize(("stages", "layer", "chunk"), [(1, 1, 64), (2, 1, 7), (2, 2, 64), (4, 0, 11)])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_hidden_states_of_every_committed_position_come_in_order(
    family: str, stages: int, layer: int, chunk: int, listen: Any
) -> None:
    _, heard = listen(family, Needs(hidden_layer=layer), bushy, SchedulerOptions(prefill_chunk=chunk), stages=stages)
    check_hidden(tiny_model(family), heard, layer)


def check_hidden(model: Any, heard: list[list[Heard]], layer: int) -> None:
    for outcomes in heard:
        rows = np.zeros((0, 32), dtype=np.float32)
        for context, outcome in outcomes:
            assert outcome.artefacts is not None
            assert outcome.artefacts.hidden is not None
            rows = np.concatenate((rows, outcome.artefacts.hidden))
            assert not outcome.tokens or len(rows) == len(context) - 1
        states = forward(model, outcomes[-1][0], output_hidden_states=True).hidden_states[layer + 1][0, : len(rows)]
        assert np.allclose(rows, states, atol=1e-4)


def test_after_a_preemption_nothing_is_told_twice(listen: Any) -> None:
    needs = Needs(hidden_layer=1, prompt_top_k=TOP)
    done, heard = listen("qwen3", needs, bushy, SchedulerOptions(prefill_chunk=2), n_blocks=23, block_size=4)
    assert sum(completion.stats.preemptions for completion in done) > 0
    check_hidden(tiny_model("qwen3"), heard, 1)
    for text, outcomes in zip(random_prompts(3, first=1), heard, strict=True):
        assert len(gather([outcome for _, outcome in outcomes])) == len(text)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_of_chosen_heads_equals_eager_attention_in_the_order_asked_for(
    family: str, stages: int, listen: Any
) -> None:
    heads = ((2, 3), (0, 1), (3, 0), (2, 0), (1, 2))
    _, heard = listen(family, Needs(heads=heads), bushy, SchedulerOptions(prefill_chunk=20), stages=stages)
    check_attention(tiny_model, family, heard, heads)


def check_attention(model: Model, family: str, heard: list[list[Heard]], heads: Sequence[tuple[int, int]]) -> None:
    for outcomes in heard:
        wanted = forward(eager(model, family), outcomes[-1][0], output_attentions=True).attentions
        for context, outcome in outcomes:
            if not outcome.tokens:
                assert outcome.artefacts is None
                continue
            assert outcome.artefacts is not None
            assert outcome.artefacts.attention is not None
            n = len(context) - 1  # forwarded positions: all but the bonus token
            rows = [wanted[layer][0, head, n - 1, :n].numpy() for layer, head in heads]
            assert np.allclose(outcome.artefacts.attention, np.stack(rows), atol=1e-5)


def test_needs_may_differ_within_a_batch() -> None:
    needs = {
        "a": Needs(hidden_layer=1, heads=((2, 3), (0, 1))),
        "b": Needs(heads=((2, 0), (0, 1), (2, 2)), node_top_k=2),
        "c": Needs(probe_top_k=TOP, prompt_top_k=3),
    }
    texts = random_prompts(4)
    answers = {tuple(text): reference_tokens("llama", tuple(text), N_TOKENS) for text in texts}
    listeners = {name: Listener(one, answers, bushy) for name, one in needs.items()}
    extra = {name: lambda _, made=made: made for name, made in listeners.items()}
    runner = make_engine(make_target("llama", stages=2), {}, SchedulerOptions(prefill_chunk=50), extra)
    params = SamplingParams(max_tokens=N_TOKENS)
    complete_all(runner, [Request(text, params, name) for text, name in zip(texts, [*needs, "pld"], strict=True)])
    check_hidden(tiny_model("llama"), list(listeners["a"].heard.values()), 1)
    check_attention(tiny_model, "llama", list(listeners["a"].heard.values()), needs["a"].heads)
    check_attention(tiny_model, "llama", list(listeners["b"].heard.values()), needs["b"].heads)
    (heard,) = listeners["c"].heard.values()
    assert gather([outcome for _, outcome in heard]).shape == (len(texts[2]), 3)
    assert all(set(outcome.top_ids) == outcome.tree.probe_ends for _, outcome in heard)
