"""AdaPLD against scans of the whole text and of all states."""

from random import Random

import numpy as np
import pytest

from engine.composer import compose
from engine.errors import ConfigError, UnknownMethodError
from engine.protocol import Artefacts, Needs, Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE, ROOT, TokenTree
from speculators.peers.adapld import AdaPld, AdaPldConfig
from speculators.testing import HashTarget

DIMS = 6


def view(prompt):
    return RequestView.of(0, Request(prompt, SamplingParams(max_tokens=400)), 64)


class Literal:
    """Everything kept as it came: text, states, successors of every token."""

    def __init__(self, config):
        self.config, self.states, self.successors = config, [], {}

    def alike(self, positions):
        """The position whose state is most like the last one's, and how much."""
        rows = [row / np.linalg.norm(row) for row in self.states]
        cosines = [float(rows[position] @ rows[-1]) for position in positions]
        best = int(np.argmax(cosines))
        return positions[best], cosines[best]

    def span(self, text):
        config, t = self.config, len(text)
        for n in range(min(config.ngram_max, t - 1), config.ngram_min - 1, -1):
            ends = [end for end in range(n, t) if text[end - n : end] == text[t - n :]]
            if ends:
                with_state = [end - 2 for end in ends if end >= 2]
                start = self.alike(with_state)[0] + 2 if with_state else ends[-1]
                return text[start : start + config.draft_tokens]
        if t < 3:
            return []
        position, cosine = self.alike(range(t - 2))
        return text[position + 2 :][: config.draft_tokens] if cosine >= config.least else []

    def draft(self, text):
        span = self.span(text)
        paths = [tuple(span[: i + 1]) for i in range(len(span))]
        others = [token for token in self.successors.get(text[-1], []) if [token] != span[:1]]
        for token in others[: self.config.branches]:
            paths.append((token,))
            behind = [i + 1 for i in range(len(text) - 1) if text[i] == token]
            if behind:
                known = [place - 2 for place in behind if place >= 2]
                place = self.alike(known)[0] + 2 if known else behind[-1]
                paths.append((token, text[place]))
        return paths


def paths_of(tree):
    return [tuple(tree.tokens[i] for i in tree.path(node)) for node in range(len(tree))]


def hidden(rng, text):
    """States that depend on the token and on chance."""
    rows = np.array([[np.sin(token * (i + 1)) for i in range(DIMS)] for token in text], np.float32)
    return Artefacts(rows + 0.3 * rng.standard_normal(rows.shape).astype(np.float32))


@pytest.mark.parametrize("ngram_min", [1, 2, 4])
@pytest.mark.parametrize("n_successors", [1, 3])
def test_drafts_are_those_of_whole_scans_step_by_step(ngram_min, n_successors):
    config = AdaPldConfig(layer=0, ngram_max=4, ngram_min=ngram_min, draft_tokens=5, branches=3, top_k=4, least=0.6)
    target, rng = HashTarget(64, n_successors), np.random.default_rng(1)
    prompt = [Random(0).randrange(20) for _ in range(30)]
    adapld, literal, request = AdaPld(config), Literal(config), view(prompt)
    adapld.begin(request)
    read = target.read_prompt(prompt)
    artefacts = hidden(rng, prompt)
    outcome = Outcome(
        read.tokens,
        EMPTY_TREE,
        prompt_top_ids=read.prompt_top_ids,
        prompt_top_logprobs=read.prompt_top_logprobs,
        n_read=len(prompt),
        artefacts=artefacts,
    )
    for token, ids in zip(prompt, read.prompt_top_ids.tolist(), strict=True):
        literal.successors[token] = ids[: config.top_k]
    for _ in range(30):
        literal.states.extend(artefacts.hidden)
        request.context.extend(outcome.tokens)
        adapld.observe(request, outcome)
        text = request.context.view.tolist()
        branches = adapld.propose(request, 64)
        found = [path for branch in branches for path in paths_of(TokenTree(branch.tokens, branch.parents))]
        assert found == literal.draft(text)
        tree = compose(branches, 64)
        scored = target.score(text, tree)
        artefacts = hidden(rng, [text[-1], *scored.tokens[:-1]])
        outcome = Outcome(scored.tokens, tree, scored.accepted, scored.top_ids, artefacts=artefacts)
        literal.successors[text[-1]] = scored.top_ids[ROOT][: config.top_k]
        for node, token in enumerate(tree.tokens):
            literal.successors[token] = scored.top_ids[node][: config.top_k]
    output = request.context.view[len(prompt) :].tolist()
    assert output == target.generate(prompt, len(output))
    adapld.end(request)
    assert adapld._states == {}


def test_without_states_it_is_lookup_of_the_latest_match():
    """A speculator that was restarted knows no states of the prompt."""
    adapld, request = AdaPld(AdaPldConfig(layer=0, branches=0)), view([1, 2, 3, 1, 2, 4, 1])
    adapld.begin(request)
    request.context.extend([2])
    adapld.observe(request, Outcome([2], EMPTY_TREE))
    assert [branch.tokens for branch in adapld.propose(request, 2)] == [[4, 1]]
    request.context.extend([9])
    adapld.observe(request, Outcome([9], EMPTY_TREE))
    assert adapld.propose(request, 8) == []  # nothing matches, nothing is known to be alike


def test_the_budget_cuts_alternatives_first():
    target, adapld, request = HashTarget(64), AdaPld(AdaPldConfig(layer=0, draft_tokens=4)), view([5, 6, 7, 8, 5])
    adapld.begin(request)
    request.context.extend([6])
    adapld.observe(request, Outcome([6], EMPTY_TREE, prompt_top_ids=np.array([[1] * 8] * 5, np.int32)))
    for budget, wanted in ((2, [7, 8]), (4, [7, 8, 5, 6])):
        assert adapld.propose(request, budget)[0].tokens == wanted
    outcome = target.score(request.context.view.tolist(), compose(adapld.propose(request, 4), 4))
    request.context.extend(outcome.tokens)
    adapld.observe(request, outcome)
    for budget in range(1, 30):
        assert sum(len(branch.tokens) for branch in adapld.propose(request, budget)) <= budget


def test_needs_and_settings():
    needs = AdaPld(AdaPldConfig(layer=3, dims=16, top_k=4)).needs
    assert needs == Needs(node_top_k=4, prompt_top_k=4, top_logprobs=True, hidden_layer=3, hidden_dims=16)
    with pytest.raises(UnknownMethodError, match="needs a layer"):
        AdaPld(AdaPldConfig())
    for bad in ({"draft_tokens": 0}, {"branches": -1}, {"least": 2.0}, {"top_k": 0}, {"dims": -1}):
        with pytest.raises(ConfigError, match=f"adapld: {next(iter(bad))} must "):
            AdaPldConfig(**bad)
    with pytest.raises(ConfigError, match="ngram_min"):
        AdaPldConfig(ngram_min=4)
