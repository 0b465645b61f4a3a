"""SPECTRA-CORE: training-free internal speculation (SPECTRA, Le et al., 2025, section 4.2.1 and Algorithm 1).

Guesses come from two n-gram dictionaries; the n-grams come from a candidate pool that the target extends in the same
forward (probe branches), and, by option, from the prompt and the accepted output. All state belongs to one request.

Nodes: the published setting needs up to ``G * (N - 1) + W * (N - 1)`` = 120 of them. With less, guesses get their share
first, probes what is left, and pool rows take turns.
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
from speculators.pieces import PIECE, piece_beside
from speculators.spectra.candidate_pool import CandidatePool

FORWARD, BACKWARD = "spectra-core.forward", "spectra-core.backward"  # what each dictionary's guesses may be labelled


@dataclass(frozen=True, slots=True)
class SpectraCoreConfig:
    """SPECTRA-CORE settings; ``SpectraCoreConfig.paper()`` is the published method to the letter.

    Memory per request is bounded by ``max_forward_keys`` (at most 2 kB each with a full list; usually 0.4 kB) and
    ``max_backward_keys`` (0.1 kB each): 12 MB at the defaults in the worst case, 1 to 3 MB for a usual chat.

    Raises:
        ConfigError: a value is out of range.
    """

    ngram: int = 5  # N, tokens
    pool_rows: int = 15  # W
    max_guesses: int = 15  # G, chains per step
    per_key: int = 15  # sequences kept per key of S_fwd
    explore: float = 0.0  # probability that a pool row takes the target's best token that is no key of S_fwd yet
    seed: int = 0  # combined with the request's seed
    probe_top_k: int = 32  # ids read back per probe
    guess_order: Literal["backward-first", "paper"] = "backward-first"
    guess_reserve: int = 0  # of max_guesses, left free for retrieval guesses of another source
    probe_share: float = 0.4  # of the budget, kept free of guesses: 6 probes of 4 nodes at budget 64
    backward_tokens: int = 10  # longest backward guess; 0 is N, as in the paper
    learn_from_prompt: bool = True  # also learn the prompt's n-grams; the paper does not
    learn_from_output: bool = True  # also learn the accepted output's n-grams; the paper does not
    prompt_window: int = 8192  # last tokens of a long prompt that are learnt from, about 2.5 us each
    drop_prefixes: bool = True  # S_fwd keeps no sequence that begins a longer, newer one; the paper keeps both
    max_forward_keys: int = 4096
    max_backward_keys: int = 32768
    use_forward: bool = True  # ablation (the paper's table 2): S_fwd
    use_backward: bool = True  # ablation: S_bwd
    use_sub_ngrams: bool = True  # ablation: n-grams shorter than N
    label_dictionaries: bool = False  # count guesses by dictionary (the paper's figure 3), not as the method's

    def __post_init__(self) -> None:
        least = {"ngram": 2, "pool_rows": 1, "max_guesses": 1, "per_key": 1, "probe_top_k": 1}
        least |= {"max_forward_keys": 2, "max_backward_keys": 2 * self.ngram, "prompt_window": 0}
        least |= {"guess_reserve": 0, "backward_tokens": 0}
        for field, minimum in least.items():
            if getattr(self, field) < minimum:
                raise ConfigError(f"spectra-core: {field} must be at least {minimum}, got {getattr(self, field)}")
        for field in ("explore", "probe_share"):
            if not 0.0 <= getattr(self, field) <= 1.0:
                raise ConfigError(f"spectra-core: {field} must lie in 0..1, got {getattr(self, field)}")
        if self.guess_order not in ("backward-first", "paper"):
            raise ConfigError(f"spectra-core: guess_order must be backward-first or paper, got {self.guess_order!r}")

    @classmethod
    def paper(cls) -> SpectraCoreConfig:
        """Algorithm 1 as published; to be run with 128 nodes.

        Its refine threshold, 0.1, can be read as how often a row explores or as how often it does not (0.9, which a
        commentary's ``r > tau`` says). Only the first agrees with the paper's table 2 (docs/methods/spectra-core.md).
        """
        return cls(
            explore=0.1,
            guess_order="paper",
            backward_tokens=0,
            learn_from_prompt=False,
            learn_from_output=False,
            drop_prefixes=False,
        )


class _State:
    """Everything known about one request."""

    __slots__ = ("backward", "forward", "n_begin", "n_learnt", "pool")

    def __init__(self, config: SpectraCoreConfig, view: RequestView) -> None:
        prompt = view.context.view.tolist() or [0]
        rng = Random(f"{config.seed}/{view.request.params.seed}")
        self.forward = ForwardDictionary(config.per_key, config.max_forward_keys, config.drop_prefixes)
        self.backward = BackwardDictionary(config.max_backward_keys)
        self.pool = CandidatePool(prompt, config.pool_rows, config.ngram - 1, config.explore, rng)
        self.n_begin = len(view.context)  # tokens of the context when the request began
        self.n_learnt = self.n_begin  # tokens of the context that are learnt

    @property
    def is_behind(self) -> bool:
        """Whether part of the prompt is still to be learnt."""
        return self.n_learnt < self.n_begin


class SpectraCore:
    """Guesses from two dictionaries, which a pool of probed candidates keeps filling."""

    name = "spectra-core"

    def __init__(self, config: SpectraCoreConfig | None = None) -> None:
        self._config = config or SpectraCoreConfig()
        self._states: dict[int, _State] = {}
        self.needs = Needs(probe_top_k=self._config.probe_top_k)

    def begin(self, view: RequestView) -> None:
        """Fill the pool with random prompt tokens (seeded) and, by option, begin to learn the prompt."""
        state = self._states[view.request_id] = _State(self._config, view)
        if self._config.learn_from_prompt:
            state.n_learnt -= min(state.n_learnt, self._config.prompt_window)
            self._learn_text(state, view, PIECE)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Guesses, best first, then probes of the pool rows whose turn it is."""
        counter = NodeCounter()
        guesses = fitting(self.guesses(view, self._config.label_dictionaries), counter, self.guess_nodes(budget))
        return guesses + self.probes(view, counter, budget)

    def guesses(self, view: RequestView, labelled: bool) -> list[Branch]:
        """The backward guess and the forward guesses in the configured order, whole chains.

        ``labelled``: their sources are ``FORWARD`` and ``BACKWARD``, not the method's name.
        """
        config, state = self._config, self._states[view.request_id]
        n_guesses = max(config.max_guesses - config.guess_reserve, 0)
        tail = view.context.view[-(config.ngram - 1) :].tolist()
        sources = (FORWARD, BACKWARD) if labelled else (self.name, self.name)
        forward = [Branch(guess, sources[0]) for guess in (state.forward[tail[-1]] if tail else [])]
        extended = state.backward.extend(tail, config.ngram - 1, config.backward_tokens or config.ngram)
        backward = [Branch(extended, sources[1])] if extended else []
        both = forward + backward if config.guess_order == "paper" else backward + forward
        return both[:n_guesses]

    def probes(self, view: RequestView, counter: NodeCounter, budget: int) -> list[Branch]:
        """The pool rows whose turn it is, as many as fit; the step's outcome brings the target's answers.

        None before the prompt is learnt: the dictionaries would forget answers sooner than older text.
        """
        state = self._states[view.request_id]
        rows = [] if state.is_behind else state.pool.choose(counter, budget)
        return [Branch(row, self.name, None, True) for row in rows]

    def guess_nodes(self, budget: int) -> int:
        """Nodes that guesses may take: what whole probes leave of ``budget``, at most all rows of them."""
        depth = self._config.ngram - 1
        return budget - min(int(budget * self._config.probe_share) // depth, self._config.pool_rows) * depth

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Advance the pool, then learn: the pool's n-grams first, so that accepted text counts as more recent.

        Chunks of the prompt are observed, too: a long prompt is learnt piece by piece while the target reads it.
        """
        state = self._states[view.request_id]
        for ngram in state.pool.advance(outcome, state.forward):
            self._learn_ngram(state, ngram)
        if self._config.learn_from_output or state.is_behind:
            self._learn_text(state, view, piece_beside(outcome))

    def end(self, view: RequestView) -> None:
        """Drop the request's state."""
        self._states.pop(view.request_id, None)

    def _learn_ngram(self, state: _State, ngram: Tokens) -> None:
        """Learn one pool row ``ngram`` ``[N]`` and its sub-n-grams; without ``use_sub_ngrams`` only the whole of it."""
        config = self._config
        last = len(ngram) - 1
        if config.use_forward:
            for j in range(last if config.use_sub_ngrams else 1):
                state.forward.add(ngram[j], ngram[j + 1 :])
        if config.use_backward:
            for j in range(1 if config.use_sub_ngrams else last, last + 1):
                state.backward.add(ngram[:j], ngram[j])

    def _learn_text(self, state: _State, view: RequestView, n: int) -> None:
        """Learn the n-grams that the tokens committed since the last call complete, ``n`` at most; O(N) per token.

        Keys of ``S_bwd`` end right before a new token. ``S_fwd`` learns the ``N - 1`` tokens behind a key once they are
        there: the shorter sequences of the pool's rule would all be prefixes of these and add no node to a tree.
        """
        config = self._config
        longest = config.ngram - 1
        first = max(state.n_learnt - longest, 0)
        end = len(view.context) if config.learn_from_output else state.n_begin
        text = tuple(view.context.view[first : min(end, state.n_learnt + n)].tolist())
        n_known = state.n_learnt - first
        if config.use_backward:
            state.backward.learn(text, n_known, 1 if config.use_sub_ngrams else longest, longest)
        if config.use_forward:
            for key in range(max(n_known - longest, 0), len(text) - longest):
                state.forward.add(text[key], text[key + 1 : key + 1 + longest])
        state.n_learnt = first + len(text)


def fitting(guesses: Sequence[Branch], counter: NodeCounter, limit: int) -> list[Branch]:
    """The guesses, chains, that add a node to what ``counter`` holds, the last one cut to ``limit`` nodes in all."""
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
    description="SPECTRA's dictionaries of n-grams, filled by probes",
    settings=SpectraCoreConfig,
)
