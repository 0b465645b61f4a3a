"""Requests, paths of drafts, and a decode loop without an engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from engine.composer import compose
from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE, ROOT, TokenTree
from speculators.testing import HashTarget

Path = tuple[int, ...]
REQUEST_FIELDS = {"scope", "namespace", "emitted", "prediction"}


def view(prompt: Sequence[int], request_id: int = 0, vocab_size: int = 64, **settings: Any) -> RequestView:
    """``settings`` are fields of ``Request`` and of ``SamplingParams``."""
    fields = {name: settings.pop(name) for name in REQUEST_FIELDS & settings.keys()}
    return RequestView.of(request_id, Request(list(prompt), SamplingParams(**settings), **fields), vocab_size)


def paths_of(branches: Iterable[Branch]) -> list[Path]:
    """The path of every node, branch by branch."""
    return [path for branch in branches for path in _paths(branch.tokens, branch.above)]


def tree_paths(tree: TokenTree) -> list[Path]:
    return _paths(tree.tokens, tree.parents)


def _paths(tokens: Sequence[int], parents: Sequence[int]) -> list[Path]:
    paths: list[Path] = []
    for token, parent in zip(tokens, parents, strict=True):
        assert ROOT <= parent < len(paths)
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    return paths


def tokens_of(branches: Iterable[Branch]) -> list[int]:
    return [token for branch in branches for token in branch.tokens]


def first_draft(speculator: Speculator, request: RequestView, budget: int = 64) -> list[Branch]:
    """The draft of a request that begins and ends."""
    speculator.begin(request)
    branches = speculator.propose(request, budget)
    speculator.end(request)
    return branches


class Scripted:
    """Drafts the branches it was given, ranges cut to the budget; logs its calls, and fails in the named ones."""

    def __init__(self, name="a", branches: Sequence[Branch] | None = None, fails_in="", needs=None) -> None:
        self.name, self.fails_in, self.needs = name, fails_in, needs or Needs()
        self.branches = [Branch(range(1, 4), name)] if branches is None else branches
        self.log: list[tuple[str, int]] = []  # calls and request ids

    def called(self, what: str) -> list[int]:
        """Ids of the requests of such calls."""
        return [request_id for name, request_id in self.log if name == what]

    def call(self, what: str, request: RequestView) -> None:
        self.log.append((what, request.request_id))
        if what == self.fails_in:
            raise RuntimeError(f"{what} is broken")

    def begin(self, request: RequestView) -> None:
        self.call("begin", request)

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        self.call("propose", request)
        return [Branch([*b.tokens[:budget]], b.source) if isinstance(b.tokens, range) else b for b in self.branches]

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        self.call("observe", request)

    def end(self, request: RequestView) -> None:
        self.call("end", request)


class DecodeStep(NamedTuple):
    """One step of a decode run, before the speculator observes it."""

    request: RequestView
    branches: list[Branch]  # proposed after the context
    outcome: Outcome  # of the target's forward pass; its tokens are not yet in the context


def steps(
    speculator: Speculator, target: HashTarget, request: RequestView, n_tokens: int, budget: int = 64
) -> Iterator[DecodeStep]:
    """Decode greedily; yields every step, then lets the speculator observe it."""
    speculator.begin(request)
    outcome = Outcome([target.next_token(request.context.view.tolist())], EMPTY_TREE)
    while True:
        request.context.extend(outcome.tokens)
        speculator.observe(request, outcome)
        if len(request.context) - request.n_prompt >= n_tokens:
            break
        branches = speculator.propose(request, budget)
        outcome = target.score(request.context.view.tolist(), compose(branches, budget))
        yield DecodeStep(request, branches, outcome)
    speculator.end(request)


def count_steps(
    speculator: Speculator, target: HashTarget, prompt: Sequence[int], n_tokens: int, budget: int = 64
) -> int:
    """Steps that ``n_tokens`` take, whose text is checked against plain decoding."""
    request = view(prompt, vocab_size=target.vocab_size)
    n_steps = sum(1 for _ in steps(speculator, target, request, n_tokens, budget))
    assert request.context.view[len(prompt) :].tolist()[:n_tokens] == target.generate(prompt, n_tokens)
    return n_steps


def observe_prompt(
    speculator: Speculator, request: RequestView, target: HashTarget, ends: Sequence[int] = (), logprobs: bool = True
) -> None:
    """Observe a prompt that the target read in chunks with these ends, and its first token."""
    prompt = request.context.view.tolist()
    whole, start = target.read_prompt(prompt), 0
    for end in (*(end for end in ends if end < len(prompt)), len(prompt)):
        tokens = whole.tokens if end == len(prompt) else []
        request.context.extend(tokens)
        outcome = Outcome(
            tokens,
            EMPTY_TREE,
            prompt_top_ids=whole.prompt_top_ids[start:end],
            prompt_top_logprobs=whole.prompt_top_logprobs[start:end] if logprobs else None,
            prompt_start=start,
            n_read=end - start,
        )
        speculator.observe(request, outcome)
        start = end


def follow(speculator: Speculator, literal: Any, target: HashTarget, prompt: list[int], n: int, budget: int) -> int:
    """Decode ``n`` steps; every draft must be that of the literal algorithm. Returns the number of tokens.

    ``literal`` has ``draft(text, budget)``, which returns paths; ``learn(context, ids)``, called for every context
    whose ids are read back; and, where it needs them, ``forward(tokens)``, which returns the artefacts of forwarded
    tokens, and ``commit(tokens)``.
    """
    request = view(prompt, vocab_size=target.vocab_size, max_tokens=400)
    speculator.begin(request)
    outcome = target.read_prompt(prompt)
    if speculator.needs.prompt_top_k:
        for end, ids in enumerate(outcome.prompt_top_ids.tolist(), 1):
            literal.learn(prompt[:end], ids)
    else:
        outcome = Outcome(outcome.tokens, EMPTY_TREE)
    forwarded = prompt
    for _ in range(n):
        if hasattr(literal, "forward"):
            outcome = msgspec.structs.replace(outcome, artefacts=literal.forward(forwarded))
        request.context.extend(outcome.tokens)
        speculator.observe(request, outcome)
        text = request.context.view.tolist()
        branches = speculator.propose(request, budget)
        assert paths_of(branches) == literal.draft(text, budget)
        tree = compose(branches, budget)
        assert tree_paths(tree) == paths_of(branches)
        outcome = target.score(text, tree)
        forwarded = [text[-1], *outcome.tokens[:-1]]
        literal.learn(text, outcome.top_ids[ROOT])
        for node, path in enumerate(tree_paths(tree)):  # rejected ones too
            literal.learn([*text, *path], outcome.top_ids[node])
        if hasattr(literal, "commit"):
            literal.commit(outcome.tokens)
    output = request.context.view[len(prompt) :].tolist()
    assert output == target.generate(prompt, len(output))
    return len(output)
