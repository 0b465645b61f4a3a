"""SPECTRA-CORE: drafts from the text itself, without training (SPECTRA, Le et al., 2025, section 4.2.1, Algorithm 1).

Two dictionaries of n-grams guess the next tokens. They learn from the candidate pool, which the target extends in the
same forward pass (probe branches), and optionally from the prompt and the output. Guesses get their share of the nodes
first, probes get the rest, and pool rows take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from msgspec.structs import replace

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from speculators.method import Method
from speculators.ngrams.dictionaries import BackwardDictionary, ForwardDictionary, Tokens
from speculators.node_counter import NodeCounter
from speculators.per_request import PerRequest
from speculators.pieces import PIECE, tokens_to_learn
from speculators.settings import Settings, setting
from speculators.spectra.candidate_pool import CandidatePool

FORWARD, BACKWARD = "spectra-core.forward", "spectra-core.backward"  # optional labels of each dictionary's guesses


@dataclass(frozen=True, slots=True)
class SpectraCoreConfig(Settings):
    """Settings of SPECTRA-CORE; at the defaults, a request takes 1 to 3 MB in a usual chat and at most 12 MB."""

    ngram: int = setting(5, "tokens of an n-gram (N)", at_least=2)
    pool_rows: int = setting(15, "rows of the candidate pool (W)", at_least=1)
    max_guesses: int = setting(15, "chains per step (G)", at_least=1)
    per_key: int = setting(15, "sequences kept per forward key", at_least=1)
    explore: float = setting(
        0.0, "probability that a pool row takes the best token that is no forward key yet", at_least=0.0, at_most=1.0
    )
    seed: int = setting(0, "combined with the request's seed")
    probe_top_k: int = setting(32, "ids read back per probe", at_least=1)
    guess_order: Literal["backward-first", "paper"] = setting("backward-first", "which guesses come first")
    probe_share: float = setting(0.4, "share of the nodes that guesses leave to probes", at_least=0.0, at_most=1.0)
    backward_tokens: int = setting(10, "tokens of the backward guess; 0: N, as published", at_least=0)
    learn_from_prompt: bool = setting(True, "learn the prompt's n-grams; the published method does not")
    learn_from_output: bool = setting(True, "learn the output's n-grams; the published method does not")
    prompt_window: int = setting(8192, "last tokens of the prompt that are learnt, about 2.5 us each", at_least=0)
    drop_prefixes: bool = setting(True, "drop a forward sequence when a longer, newer one begins with it")
    max_forward_keys: int = setting(4096, "keys of the forward dictionary", at_least=2)
    max_backward_keys: int = setting(32768, "keys of the backward dictionary; at least 2 N")
    use_forward: bool = setting(True, "use the forward dictionary (ablation)")
    use_backward: bool = setting(True, "use the backward dictionary (ablation)")
    use_sub_ngrams: bool = setting(True, "learn n-grams that are shorter than N (ablation)")
    label_dictionaries: bool = setting(False, "count each dictionary's guesses under its own name")

    def check(self) -> None:
        if self.max_backward_keys < 2 * self.ngram:
            raise ConfigError(f"max_backward_keys is {self.max_backward_keys}; it must be at least {2 * self.ngram}")

    @classmethod
    def paper(cls) -> SpectraCoreConfig:
        """Return Algorithm 1 as published; run it with 128 nodes. docs/methods/spectra.md explains ``explore``."""
        learns = {"learn_from_prompt": False, "learn_from_output": False}
        return cls(explore=0.1, guess_order="paper", backward_tokens=0, drop_prefixes=False, **learns)


@dataclass(slots=True)
class SpectraCoreState:
    """Dictionaries and pool of one request, and how much of its context the dictionaries have learnt."""

    forward: ForwardDictionary
    backward: BackwardDictionary
    pool: CandidatePool
    n_begin: int  # tokens of the context when the request began
    n_learnt: int

    @property
    def is_learning_prompt(self) -> bool:
        return self.n_learnt < self.n_begin


class SpectraCore(PerRequest[SpectraCoreState]):
    """Drafts guesses of two dictionaries and probes of the pool from which they learn."""

    name = "spectra-core"

    def __init__(self, config: SpectraCoreConfig | None = None) -> None:
        super().__init__()
        self._config = config or SpectraCoreConfig()
        self.needs = Needs(probe_top_k=self._config.probe_top_k)

    def new_state(self, view: RequestView) -> SpectraCoreState:
        config, n = self._config, len(view.context)
        rng = Random(f"{config.seed}/{view.request.params.seed}")
        prompt = view.context.view.tolist() or [0]
        state = SpectraCoreState(
            ForwardDictionary(config.per_key, config.max_forward_keys, config.drop_prefixes),
            BackwardDictionary(config.max_backward_keys),
            CandidatePool(prompt, config.pool_rows, config.ngram - 1, config.explore, rng),
            n,
            max(n - config.prompt_window, 0) if config.learn_from_prompt else n,
        )
        if config.learn_from_prompt:
            self._learn_text(state, view, PIECE)
        return state

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return guesses, best first, then probes."""
        counter = NodeCounter()
        guesses = self.fitting_guesses(view, counter, self.guess_nodes(budget))
        # No probes before the prompt is learnt: the dictionaries would drop n-grams of the pool before older text.
        state = self.states[view.request_id]
        rows = [] if state.is_learning_prompt else state.pool.choose(counter, budget)
        return guesses + [Branch(row, SpectraCore.name, probe=True) for row in rows]

    def fitting_guesses(self, view: RequestView, counter: NodeCounter, limit: int) -> list[Branch]:
        """Return guesses, and add them to ``counter``: at most ``limit`` nodes."""
        return fitting(self.guesses(view), counter, limit)

    def guesses(self, view: RequestView) -> list[Branch]:
        """Return whole chains of both dictionaries in the configured order."""
        config, state = self._config, self.states[view.request_id]
        tail = view.context.view[-(config.ngram - 1) :].tolist()
        sources = (FORWARD, BACKWARD) if config.label_dictionaries else (SpectraCore.name, SpectraCore.name)
        forward = [Branch(guess, sources[0]) for guess in (state.forward[tail[-1]] if tail else [])]
        extended = state.backward.extend(tail, config.ngram - 1, config.backward_tokens or config.ngram)
        backward = [Branch(extended, sources[1])] if extended else []
        both = forward + backward if config.guess_order == "paper" else backward + forward
        return both[: config.max_guesses]

    def guess_nodes(self, budget: int) -> int:
        """Return the nodes that guesses may take: all but ``probe_share``, rounded down to whole probes."""
        depth = self._config.ngram - 1
        return budget - min(int(budget * self._config.probe_share) // depth, self._config.pool_rows) * depth

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Learn the pool's n-grams, then the text, which then counts as more recent; also from chunks of the prompt."""
        state = self.states[view.request_id]
        for ngram in state.pool.advance(outcome, state.forward):
            self._learn_ngram(state, ngram)
        if self._config.learn_from_output or state.is_learning_prompt:
            self._learn_text(state, view, tokens_to_learn(outcome))

    def _learn_ngram(self, state: SpectraCoreState, ngram: Tokens) -> None:
        """Learn ``ngram`` ``[N]``, and its sub-n-grams if ``use_sub_ngrams``."""
        config, last = self._config, len(ngram) - 1
        if config.use_forward:
            for j in range(last if config.use_sub_ngrams else 1):
                state.forward.add(ngram[j], ngram[j + 1 :])
        if config.use_backward:
            for j in range(1 if config.use_sub_ngrams else last, last + 1):
                state.backward.add(ngram[:j], ngram[j])

    def _learn_text(self, state: SpectraCoreState, view: RequestView, n: int) -> None:
        """Learn the n-grams that end in the next ``n`` tokens of the context; O(N) per token."""
        config, longest = self._config, self._config.ngram - 1
        first = max(state.n_learnt - longest, 0)
        end = len(view.context) if config.learn_from_output else state.n_begin
        text = tuple(view.context.view[first : min(end, state.n_learnt + n)].tolist())
        n_known = state.n_learnt - first
        if config.use_backward:
            state.backward.learn(text, n_known, 1 if config.use_sub_ngrams else longest, longest)
        if config.use_forward:  # N - 1 tokens only: shorter sequences would be their prefixes and add no node
            for key in range(max(n_known - longest, 0), len(text) - longest):
                state.forward.add(text[key], text[key + 1 : key + 1 + longest])
        state.n_learnt = first + len(text)


def fitting(guesses: Sequence[Branch], counter: NodeCounter, limit: int) -> list[Branch]:
    """Return the chains that add nodes to ``counter``; the last one is cut to ``limit`` nodes in all."""
    fits: list[Branch] = []
    for guess in guesses:
        before = counter.n_nodes
        n_tokens = counter.add(guess.tokens, limit)
        if counter.n_nodes > before:
            fits.append(guess if n_tokens == len(guess.tokens) else replace(guess, tokens=guess.tokens[:n_tokens]))
        if counter.n_nodes >= limit:
            break
    return fits


SPECTRA_CORE = Method(
    name="spectra-core",
    factory=lambda settings, context: SpectraCore(settings),
    description="guesses from two n-gram dictionaries, which learn from the text and from probed candidates",
    source="SPECTRA, Le et al., 2025, section 4.2.1 and Algorithm 1",
    settings=SpectraCoreConfig,
)
