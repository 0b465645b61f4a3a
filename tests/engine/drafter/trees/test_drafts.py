"""Drafted trees, level by level and from blocks with or without a Markov head, against an enumeration of all paths."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from msgspec import structs

from engine.composer import compose
from engine.drafter.networks.dflash import MarkovHead
from engine.drafter.spec import DrafterSpec
from engine.drafter.trees.blocks import WIDTH, draft_blocks
from engine.drafter.trees.choice import DraftVocabulary
from engine.drafter.trees.draft_tree import DraftRequest
from engine.drafter.trees.growth import start_draft
from engine.protocol import Branch
from engine.sampling.history import History
from engine.sampling.params import SamplingParams
from engine.verify.rules import walk_text
from tests.engine.drafter.draft_oracles import Path, best, chances, every_path, grown, paths, products, written

VOCAB, POSITION, DEPTH, ROOT_TOKEN, HIDDEN, N_SEQ = 6, 20, 3, 2, 4, 8
IDS = [0, 1, 3, 4]
SETTINGS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.9, seed=11),
    "truncated": SamplingParams(temperature=1.2, top_p=0.8, top_k=4, seed=3),
    "stopping": SamplingParams(temperature=1.0, seed=8, stop_ids=(1, 3)),
    "biased": SamplingParams(temperature=1.5, seed=9, logit_bias={1: 1.5}),
}
DRAWN = SamplingParams(temperature=1.0, verification="rejection", seed=6)
PENALISED = SamplingParams(temperature=0.8, frequency_penalty=2.0, repetition_penalty=1.4, seed=2)
KINDS = ("levels", "block", "vanilla", "gated", "rnn")  # the last three are blocks with a Markov head
BLOCK = torch.randn(N_SEQ, DEPTH, VOCAB, generator=torch.Generator().manual_seed(0)) * 1.5


@cache
def head(kind: str, width: int) -> tuple[MarkovHead, torch.Tensor]:
    """A Markov head, and outputs ``[n_seq, n_drafts, hidden]`` of slots."""
    torch.manual_seed(4)
    spec = DrafterSpec("dflash", 1, HIDDEN, VOCAB, width, (0,), None, markov_rank=3, markov_head=kind)  # type: ignore[arg-type]
    return MarkovHead(spec).requires_grad_(False), torch.randn(N_SEQ, DEPTH, HIDDEN)


def columns(kind: str, width: int, path: Path, seq: int = 0) -> torch.Tensor:
    """Scores ``[width]`` after ``path``, walked from the root every time."""
    if kind == "levels":
        row = np.random.default_rng([seq, *(token + 1 for token in path)]).normal(0.0, 1.5, width)
        return torch.from_numpy(row).float()
    row = BLOCK[seq, len(path), :width]
    if kind != "block":
        markov, outputs = head(kind, width)
        states = None
        for depth, token in enumerate((ROOT_TOKEN, *path)):
            added, states = markov(torch.tensor([token]), outputs[seq : seq + 1, depth], states)
        row = row + added[0]
    return row


class DrafterWithOracle:
    """Drafts of one kind, by the whole vocabulary or a reduced one, and their oracle."""

    def __init__(self, kind: str, reduced: bool = False) -> None:
        self.kind, self.width = kind, len(IDS) if reduced else VOCAB
        self.vocabulary = DraftVocabulary.of(torch.tensor(IDS), VOCAB) if reduced else None

    def row(self, path: Path) -> torch.Tensor:
        """Oracle: scores ``[VOCAB]`` of the first sequence after ``path``."""
        narrow = columns(self.kind, self.width, path)
        return narrow if self.vocabulary is None else self.vocabulary.widen(narrow[None])[0]

    def draft_all(
        self, requests: Sequence[DraftRequest], first: int = 0, trust: np.ndarray | None = None
    ) -> list[Branch]:
        """Of sequences from ``first`` on."""
        if self.kind == "levels":
            return [
                branch
                for seq, request in enumerate(requests, first)
                if (branch := self._grown(seq, request)) is not None
            ]

        def condition(
            parents: torch.Tensor, sequences: torch.Tensor, depth: int, states: torch.Tensor | None
        ) -> tuple[torch.Tensor, torch.Tensor | None]:
            markov, outputs = head(self.kind, self.width)
            return markov(parents, outputs[sequences + first, depth], states)  # type: ignore[no-any-return]

        logits = BLOCK[first : first + len(requests), :, : self.width].clone()
        before, conditional = logits.clone(), None if self.kind == "block" else condition
        branches = draft_blocks(logits, requests, "drafter", self.vocabulary, conditional, trust)
        assert torch.equal(logits, before)
        return [branch for branch in branches if branch is not None]

    def _grown(self, seq: int, request: DraftRequest) -> Branch | None:
        tree = start_draft(request, request.depth, 200)
        return grown(tree, lambda path: columns("levels", self.width, path, seq), vocabulary=self.vocabulary)

    def draft(self, params: SamplingParams, n_nodes: int, depth: int = DEPTH) -> Branch:
        [branch] = self.draft_all([make_request(params, n_nodes, depth)])
        return branch


def make_request(params: SamplingParams, n_nodes: int, depth: int = DEPTH) -> DraftRequest:
    history = History([4, 1], [1]) if params.has_penalties else None
    return DraftRequest(params, history, ROOT_TOKEN, POSITION, depth, n_nodes)


CELLS = [(name, kind, (i + j) % 2 == 1) for i, name in enumerate(SETTINGS) for j, kind in enumerate(KINDS)]


@pytest.mark.parametrize(("name", "kind", "reduced"), CELLS)
def test_the_best_of_all_paths_are_drafted(name: str, kind: str, reduced: bool) -> None:
    drafter, params = DrafterWithOracle(kind, reduced), SETTINGS[name]
    found = every_path(drafter.row, params, POSITION, DEPTH)
    text = written(drafter.row, params, POSITION, DEPTH)
    ends = [i + 1 for i, token in enumerate(text) if token in params.stop_ids]
    for n_nodes in (1, 9, 1000):
        branch, expected = drafter.draft(params, n_nodes), best(found, n_nodes)
        assert set(paths(branch)) == set(expected)
        assert len(branch.tokens) == len(expected), "no node comes twice"
        assert products(branch) == pytest.approx([expected[path] for path in paths(branch)], rel=1e-4)
        assert products(branch) == sorted(products(branch), reverse=True)
        reach = max(d for d in range(DEPTH + 1) if d == 0 or text[:d] in paths(branch))
        assert reach == (ends or [DEPTH])[0] if n_nodes == 1000 else reach >= 1
        _, accepted = walk_text(compose([branch], 1000), text)
        assert len(accepted) == reach, "a target that writes the drafter's text accepts all of it"


@pytest.mark.parametrize("kind", ["block", "vanilla"])
def test_confidence_scales_the_scores_of_its_depth(kind: str) -> None:
    drafter, params = DrafterWithOracle(kind), SETTINGS["sampled"]
    trust = np.array([[0.9, 0.5, 0.8]], np.float32)
    [branch] = drafter.draft_all([make_request(params, 30)], trust=trust)
    found = every_path(drafter.row, params, POSITION, DEPTH)
    expected = best({path: chance * float(np.prod(trust[0, : len(path)])) for path, chance in found.items()}, 30)
    assert set(paths(branch)) == set(expected)
    assert products(branch) == pytest.approx([expected[path] for path in paths(branch)], rel=1e-4)
    [branch] = drafter.draft_all([make_request(params, 4)], trust=trust * 0)
    assert min(branch.scores or [0]) > 0, "an estimate is never zero"


@pytest.mark.parametrize("kind", ["levels", "block", "vanilla"])
def test_penalties_apply_along_the_path_of_a_chain(kind: str) -> None:
    drafter, path = DrafterWithOracle(kind), ()
    branch = drafter.draft(PENALISED, 8)
    for d in range(DEPTH):
        scores = chances(drafter.row(path), PENALISED, POSITION + d, History([4, 1], [1, *path]))
        path = (*path, int(scores.argmax()))
    assert tuple(branch.tokens) == path
    assert branch.parents is None


@pytest.mark.parametrize("kind", KINDS)
def test_draws_come_from_the_distribution_of_their_parent(kind: str) -> None:
    drafter = DrafterWithOracle(kind)
    branch = drafter.draft(DRAWN, 9)
    assert branch.q is not None
    assert branch.scores is None
    assert len(branch.tokens) == 9
    for path, q in zip(paths(branch), branch.q, strict=True):
        np.testing.assert_allclose(q, torch.softmax(drafter.row(path[:-1]).double(), -1), atol=1e-6)


@pytest.mark.parametrize(("kind", "reduced"), [("block", True), ("vanilla", False), ("gated", True), ("rnn", False)])
def test_no_sequence_of_a_batch_depends_on_another(kind: str, reduced: bool) -> None:
    drafter = DrafterWithOracle(kind, reduced)
    every = [*SETTINGS.values(), DRAWN, PENALISED, structs.replace(DRAWN, frequency_penalty=0.4)]
    trust = np.random.default_rng(0).uniform(0.4, 1.0, (N_SEQ, DEPTH)).astype(np.float32)

    def requests(seqs: range) -> list[DraftRequest]:
        return [make_request(every[seq], 5 + seq, 1 + seq % DEPTH) for seq in seqs]

    for seq, branch in enumerate(drafter.draft_all(requests(range(N_SEQ)), 0, trust)):
        [alone] = drafter.draft_all(requests(range(seq, seq + 1)), seq, trust[seq : seq + 1])
        assert (list(branch.tokens), branch.parents) == (list(alone.tokens), alone.parents)
        assert (branch.scores or []) == pytest.approx(alone.scores or [], rel=1e-5)
        if branch.q is not None:
            np.testing.assert_allclose(branch.q, alone.q, atol=1e-6)


@pytest.mark.parametrize("kind", ["levels", "block", "vanilla"])
def test_budgets_of_nodes_depth_and_width_are_kept(kind: str) -> None:
    drafter = DrafterWithOracle(kind)
    for params in (*SETTINGS.values(), DRAWN, PENALISED):
        for depth, n_nodes in ((1, 1), (1, 4), (2, 7), (3, 2), (3, 12)):
            branch = drafter.draft(params, n_nodes, depth)
            assert 1 <= len(branch.tokens) <= n_nodes
            assert max(map(len, paths(branch))) <= depth
            assert not any(set(path[:-1]) & set(params.stop_ids) for path in paths(branch))
        if kind != "levels":
            assert max(map(len, paths(drafter.draft(params, 12, 9)))) <= DEPTH
            assert drafter.draft_all([make_request(params, 0), make_request(params, 4, 0)]) == []
    [wide] = draft_blocks(torch.zeros(1, DEPTH, 4 * WIDTH), [make_request(SamplingParams(), 3 * WIDTH)], "drafter")
    assert wide is not None
    assert wide.parents is not None
    assert max(wide.parents.count(parent) for parent in wide.parents) <= WIDTH
