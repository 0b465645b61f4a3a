"""Trees from one forward's scores of all depths, against all paths there are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from msgspec import structs

from engine.composer import compose
from engine.drafter.networks.markov import MarkovHead
from engine.drafter.spec import DrafterSpec
from engine.drafter.spec import MarkovHead as Kind
from engine.drafter.trees.blocks import WIDTH, block_trees
from engine.drafter.trees.candidates import N_CANDIDATES
from engine.drafter.trees.choice import DraftVocabulary
from engine.drafter.trees.rounds import BlockAsk, Condition
from engine.protocol import Branch
from engine.sampling.history import History
from engine.sampling.params import SamplingParams
from engine.verify.rules import walk_text
from tests.support.draft_oracles import Model, Path, best, chances, every_path, paths, products, written

VOCAB, POSITION, DEPTH, ROOT_TOKEN, HIDDEN = 6, 20, 3, 2, 4
IDS = [0, 1, 3, 4]
SETTINGS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.9, seed=11),
    "stopping": SamplingParams(temperature=1.0, seed=8, stop_ids=(1, 3)),
    "biased": SamplingParams(temperature=1.5, seed=9, logit_bias={1: 1.5}),
}
TRUNCATED = SamplingParams(temperature=1.2, top_p=0.8, top_k=4, seed=3)
DRAWN = SamplingParams(temperature=1.0, verification="rejection", seed=6)
PENALISED = SamplingParams(temperature=0.8, frequency_penalty=2.0, repetition_penalty=1.4, seed=2)


def block(n_seq: int, width: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(n_seq, DEPTH, width, generator=torch.Generator().manual_seed(seed)) * 1.5


def ask(params: SamplingParams, n_nodes: int = 8, depth: int = DEPTH) -> BlockAsk:
    history = History([4, 1], [1]) if params.has_penalties else None
    return BlockAsk(params, history, ROOT_TOKEN, POSITION, depth, n_nodes)


def drafted(logits: torch.Tensor, asks: Sequence[BlockAsk], **options: object) -> list[Branch]:
    branches = block_trees(logits, asks, "drafter", **options)  # type: ignore[arg-type]
    assert None not in branches
    return [branch for branch in branches if branch is not None]


def head(kind: Kind, width: int = VOCAB) -> tuple[MarkovHead, torch.Tensor]:
    """A Markov head, and outputs ``[n_seq, n_drafts, hidden]`` of slots."""
    torch.manual_seed(4)
    spec = DrafterSpec("dflash", 1, HIDDEN, VOCAB, width, (0,), None, markov_rank=3, markov_head=kind)
    return MarkovHead(spec, HIDDEN).requires_grad_(False), torch.randn(8, DEPTH, HIDDEN)


def conditioned(kind: Kind, width: int = VOCAB) -> Condition:
    markov, outputs = head(kind, width)

    def condition(
        parents: torch.Tensor, sequences: torch.Tensor, depth: int, states: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        added, states = markov(parents, outputs[sequences, depth], states)
        return added, states

    return condition


def naive(logits: torch.Tensor, seq: int, kind: Kind | None = None, vocabulary: DraftVocabulary | None = None) -> Model:
    """Oracle: one sequence's rows as a function of the path, walked from the root every time."""

    def model(path: Path) -> torch.Tensor:
        row = logits[seq, len(path)]
        if kind is not None:
            markov, outputs = head(kind, logits.shape[-1])
            states = None
            for depth, token in enumerate((ROOT_TOKEN, *path)):
                added, states = markov(torch.tensor([token]), outputs[seq : seq + 1, depth], states)
            row = row + added[0]
        return row if vocabulary is None else vocabulary.widen(row[None])[0]

    return model


KINDS: list[Kind | None] = [None, "vanilla", "gated", "rnn"]


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SETTINGS)
def test_the_best_of_all_paths_are_drafted(name: str, kind: Kind | None, reduced: bool) -> None:
    vocabulary = DraftVocabulary.of(torch.tensor(IDS), VOCAB) if reduced else None
    logits = block(3, len(IDS) if reduced else VOCAB)
    before = logits.clone()
    condition = None if kind is None else conditioned(kind, logits.shape[-1])
    asks = [ask(SETTINGS[name], n_nodes) for n_nodes in (1, 9, 40)]
    branches = drafted(logits, asks, vocabulary=vocabulary, condition=condition)
    assert torch.equal(logits, before)
    for seq, branch in enumerate(branches):
        found = every_path(naive(logits, seq, kind, vocabulary), SETTINGS[name], POSITION, DEPTH)
        wanted = best(found, asks[seq].n_nodes)
        assert set(paths(branch)) == set(wanted)
        assert len(branch.tokens) == len(wanted)
        assert products(branch) == pytest.approx([wanted[path] for path in paths(branch)], rel=1e-4)
        assert products(branch) == sorted(products(branch), reverse=True)


def test_truncation_leaves_nothing_to_draft_that_cannot_be_drawn() -> None:
    logits = block(1)
    [branch] = drafted(logits, [ask(TRUNCATED, 500)])
    assert set(paths(branch)) == set(every_path(naive(logits, 0), TRUNCATED, POSITION, DEPTH))
    [branch] = drafted(logits, [ask(TRUNCATED, 500)], condition=conditioned("vanilla"))
    assert set(paths(branch)) == set(every_path(naive(logits, 0, "vanilla"), TRUNCATED, POSITION, DEPTH))


@pytest.mark.parametrize("kind", KINDS[:2])
def test_confidence_scales_the_scores_of_its_depth(kind: Kind | None) -> None:
    logits, params = block(1), SETTINGS["sampled"]
    trust = np.array([[0.9, 0.5, 0.8]], np.float32)
    condition = None if kind is None else conditioned(kind)
    [branch] = drafted(logits, [ask(params, 30)], condition=condition, confidence=trust)
    found = every_path(naive(logits, 0, kind), params, POSITION, DEPTH)
    wanted = best({path: chance * float(np.prod(trust[0, : len(path)])) for path, chance in found.items()}, 30)
    assert set(paths(branch)) == set(wanted)
    assert products(branch) == pytest.approx([wanted[path] for path in paths(branch)], rel=1e-4)
    [branch] = drafted(logits, [ask(params, 4)], condition=condition, confidence=trust * 0)
    assert branch.scores is not None
    assert min(branch.scores) > 0, "an estimate is never impossible"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_target_that_writes_what_the_block_says_accepts_all_there_is(name: str, kind: Kind | None) -> None:
    logits, params = block(4, seed=3), SETTINGS[name]
    condition = None if kind is None else conditioned(kind)
    for n_nodes in (4, 500):
        for seq, branch in enumerate(drafted(logits, [ask(params, n_nodes)] * 4, condition=condition)):
            text = written(naive(logits, seq, kind), params, POSITION, DEPTH)
            ends = [i + 1 for i, token in enumerate(text) if token in params.stop_ids]
            reach = max(d for d in range(DEPTH + 1) if d == 0 or text[:d] in paths(branch))
            assert reach == (ends or [DEPTH])[0] if n_nodes == 500 else reach >= 1
            _, accepted = walk_text(compose([branch], 500), text)
            assert len(accepted) == reach


@pytest.mark.parametrize("kind", KINDS[:2])
def test_penalties_apply_along_the_path(kind: Kind | None) -> None:
    logits = block(1)
    condition = None if kind is None else conditioned(kind)
    [branch] = drafted(logits, [ask(PENALISED)], condition=condition)
    wanted: Path = ()
    for d in range(DEPTH):
        row = naive(logits, 0, kind)(wanted)
        wanted = (*wanted, int(chances(row, PENALISED, POSITION + d, History([4, 1], [1, *wanted])).argmax()))
    assert tuple(branch.tokens) == wanted
    assert branch.parents is None


@pytest.mark.parametrize("kind", KINDS)
def test_draws_come_from_the_distribution_of_their_own_parent(kind: Kind | None) -> None:
    logits = block(2)
    condition = None if kind is None else conditioned(kind)
    for seq, branch in enumerate(drafted(logits, [ask(DRAWN, 9)] * 2, condition=condition)):
        assert branch.q is not None
        assert len(branch.tokens) == 9
        for path, q in zip(paths(branch), branch.q, strict=True):
            wanted = torch.softmax(naive(logits, seq, kind)(path[:-1]).double(), -1)
            np.testing.assert_allclose(q, wanted, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduced", [False, True])
def test_no_sequence_depends_on_another(kind: Kind | None, reduced: bool) -> None:
    vocabulary = DraftVocabulary.of(torch.tensor(IDS), VOCAB) if reduced else None
    every = [*SETTINGS.values(), TRUNCATED, DRAWN, PENALISED, structs.replace(DRAWN, frequency_penalty=0.4)]
    logits = block(len(every), len(IDS) if reduced else VOCAB)
    trust = np.random.default_rng(0).uniform(0.4, 1.0, (len(every), DEPTH)).astype(np.float32)

    def draft(seqs: list[int], again: int) -> list[Branch]:
        """``again``: the sequences' places among those of the condition."""
        condition = conditioned(kind, logits.shape[-1]) if kind is not None else None

        def moved(
            parents: torch.Tensor, sequences: torch.Tensor, depth: int, states: torch.Tensor | None
        ) -> tuple[torch.Tensor, torch.Tensor | None]:
            assert condition is not None
            return condition(parents, sequences + again, depth, states)

        asks = [ask(every[seq], 5 + seq, 1 + seq % DEPTH) for seq in seqs]
        options = {"vocabulary": vocabulary, "condition": condition and moved, "confidence": trust[seqs]}
        return drafted(logits[seqs], asks, **options)

    together = draft([*range(len(every))], 0)
    for seq, branch in enumerate(together):
        [alone] = draft([seq], seq)
        assert list(branch.tokens) == list(alone.tokens)
        assert branch.parents == alone.parents
        assert (branch.scores or []) == pytest.approx(alone.scores or [], rel=1e-5)
        if branch.q is not None:
            np.testing.assert_allclose(branch.q, alone.q, atol=1e-6)


@pytest.mark.parametrize("params", [*SETTINGS.values(), DRAWN, PENALISED], ids=[*SETTINGS, "drawn", "penalised"])
@pytest.mark.parametrize("kind", KINDS[:2])
def test_budgets_are_kept(params: SamplingParams, kind: Kind | None) -> None:
    condition = None if kind is None else conditioned(kind)
    for depth, n_nodes in ((1, 1), (1, 4), (2, 7), (9, 2), (9, 12)):
        [branch] = drafted(block(1), [ask(params, n_nodes, depth)], condition=condition)
        assert 1 <= len(branch.tokens) <= n_nodes
        assert max(map(len, paths(branch))) <= min(depth, DEPTH)
        assert not any(set(path[:-1]) & set(params.stop_ids) for path in paths(branch))
    nothing = [ask(params, 0), ask(params, 4, 0)]
    assert block_trees(block(2), nothing, "drafter", condition=condition) == [None, None]
    assert block_trees(block(0), [], "drafter", condition=condition) == []


@pytest.mark.parametrize("params", [SETTINGS["greedy"], SETTINGS["sampled"]], ids=["greedy", "sampled"])
def test_a_condition_is_evaluated_on_the_best_tokens_of_each_depth_only(params: SamplingParams) -> None:
    width = 3 * N_CANDIDATES
    logits, bonus = block(1, width), torch.randn(width, width, generator=torch.Generator().manual_seed(1)) * 3

    def condition(
        parents: torch.Tensor, sequences: torch.Tensor, depth: int, states: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return bonus[parents], None

    def model(path: Path) -> torch.Tensor:
        row, depth = logits[0, len(path)], len(path)
        order = np.argsort(-chances(row, params, POSITION + depth))
        row = row + bonus[(ROOT_TOKEN, *path)[-1]]
        row[order[N_CANDIDATES:].copy()] = -torch.inf
        return row

    [branch] = drafted(logits, [ask(params, 20)], condition=condition)
    assert {path for path in paths(branch) if len(path) == 1} <= set(best(every_path(model, params, POSITION, 1), 20))
    for path, score in zip(paths(branch), branch.scores or (), strict=True):
        wanted = chances(model(path[:-1]), params, POSITION + len(path) - 1)[path[-1]]
        assert score == pytest.approx(wanted, rel=1e-3)


def test_a_wide_block_keeps_to_its_width() -> None:
    [branch] = drafted(torch.zeros(1, DEPTH, 4 * WIDTH), [ask(SamplingParams(), 3 * WIDTH)])
    assert branch.parents is not None
    assert max(branch.parents.count(parent) for parent in branch.parents) <= WIDTH
