"""Speculative sampling with a small model (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

A small model of the same vocabulary drafts ``draft_tokens`` tokens, one forward per depth for all requests together.
Under coupled sampling it draws with the noise that the target will draw with, so that acceptance hardly falls with the
temperature; with ``verification="rejection"`` it draws on its own and hands over its distribution.

The published draft is a chain. By default it is a tree of ``tree_nodes`` nodes and the same depth, for as many drafter
forwards (``engine.drafter.trees.levels``): at equal numbers of nodes it is accepted further
(docs/methods/draft-model.md). Independent draws and requests with penalties, which depend on every node's own path, get
a chain.

Its cache is paged and of fixed size. A request that finds no room in it goes without drafts; one whose text the cache
lacks reads it in chunks: one each time the target has read a chunk of the prompt, and at most ``prefill_chunk`` tokens
per step over all requests, which do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.errors import ConfigError, UnknownMethodError
from engine.protocol import Branch, Needs, Outcome, RequestView
from speculators.draft_model.config import DraftModelConfig
from speculators.method import Method

if TYPE_CHECKING:  # torch comes with the first request, so that methods without a model need none
    from engine.sampling.history import History
    from engine.sampling.keys import NoiseKey
    from engine.sampling.randomness import Randomness
    from speculators.draft_model.drafter import Cached, Drafter
    from speculators.draft_model.growth import Growth


class DraftModel:
    """Drafts what a small model would write.

    Args:
        config: which model, and how.
        drafter: a loaded model instead of ``config.path``; otherwise it is loaded when the first request begins.
        randomness: where independent draws come from; tests enumerate it.

    Raises:
        UnknownMethodError: no model is given.
        ConfigError: there is no such model.
        UnsupportedModelError: it cannot be run.
    """

    name = "draft-model"
    needs = Needs()

    def __init__(
        self,
        config: DraftModelConfig | None = None,
        drafter: Drafter | None = None,
        randomness: Callable[[NoiseKey], Randomness] | None = None,
    ) -> None:
        self._config = config or DraftModelConfig()
        self._drafter = drafter
        self._failure = ""  # why it could not be loaded
        self._randomness = randomness
        if drafter is None:
            self._check()

    def _check(self) -> None:
        """What can be known without loading weights."""
        path = self._config.path
        if path is None:
            raise UnknownMethodError(
                "method 'draft-model' needs a small model with the target's tokenizer: give --draft-model DIR", "method"
            )
        from engine.model.loader import load_spec
        from engine.model.resolve import resolve

        load_spec(resolve(path, weights=()))

    @property
    def drafter(self) -> Drafter:
        """The model; loaded now if it is not yet.

        Raises:
            ConfigError: a load failed before; requests would wait for every further try.
        """
        if self._failure:
            raise ConfigError(self._failure)
        if self._drafter is None:
            from speculators.draft_model.drafter import Drafter

            try:
                self._drafter = Drafter.load(self._config.options)
            except Exception as error:
                self._failure = f"the draft model could not be loaded: {error!r}"
                raise
        return self._drafter

    def begin(self, view: RequestView) -> None:
        """Nothing is read yet.

        Raises:
            ConfigError: the target has another vocabulary.
        """
        n = self.drafter.info.spec.vocab_size
        if n != view.vocab_size:
            raise ConfigError(
                f"--draft-model has {n} token ids, the target {view.vocab_size}: both must use the same tokenizer"
            )
        self.drafter.begin(view)

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """The target has read a chunk of a long prompt: the drafter reads one as well."""
        if outcome.tokens or not self._fits(view):
            return
        drafter = self.drafter
        n = min(self._config.prefill_chunk, len(view.context) - 1 - drafter.cached(view.request_id).n)
        if n > 0 and drafter.reserve(view, len(view.context)):
            from speculators.draft_model.growth import chunk

            drafter.forward([chunk(view, drafter.cached(view.request_id), n)])

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """One chain, or one tree."""
        return self.propose_batch((view,), (budget,))[0]

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """``propose`` for several requests, one forward per depth for all of them."""
        try:
            drafts = self._start(views, budgets)
            self._finish([draft for draft in drafts if draft is not None])
        except Exception:
            for view in views:  # what counts as cached may not be
                self.drafter.evict(view)
            raise
        return [[] if draft is None else draft.branches(self.name) for draft in drafts]

    def end(self, view: RequestView) -> None:
        """Free the cache."""
        if self._drafter is not None:
            self._drafter.end(view.request_id)

    def _start(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Growth | None]:
        """A draft per request; requests whose cache lags far behind share ``prefill_chunk`` tokens of reading."""
        drafts: list[Growth | None] = []
        room = self._config.prefill_chunk
        for view, budget in zip(views, budgets, strict=True):
            depth = min(self._depth(view), budget)
            if depth < 1 or not self._fits(view) or not self._reserve(view, depth):
                drafts.append(None)
                continue
            cached = self.drafter.cached(view.request_id)
            cached.sync(view.context.view)
            lag = len(view.context) - cached.n
            n = lag if lag <= self._config.draft_tokens + 1 else min(lag, room)  # a step's own tokens always pass
            room -= n if lag > self._config.draft_tokens + 1 else 0
            drafts.append(self._grow(view, cached, n, depth, budget))
        return drafts

    def _finish(self, growing: list[Growth]) -> None:
        """One forward per depth, until all drafts are finished."""
        from engine.drafter.trees.choice import choose, draft_randomness

        randomness = self._randomness or draft_randomness
        while growing:
            logits = self.drafter.forward([draft.rows() for draft in growing])
            asks = [draft.asks() for draft in growing]
            choices = iter(choose(logits, [ask for some in asks for ask in some], randomness))
            taken = [draft.take([next(choices) for _ in some]) for draft, some in zip(growing, asks, strict=True)]
            growing = [draft for draft, has_more in zip(growing, taken, strict=True) if has_more]

    def _grow(self, view: RequestView, cached: Cached, n: int, depth: int, budget: int) -> Growth | None:
        """A draft once ``n`` tokens bring the cache up to date, otherwise what can be read."""
        from engine.drafter.trees.choice import draws
        from speculators.draft_model.growth import Chain, Reading, Tree

        if n < len(view.context) - cached.n:
            return Reading(view, cached, n) if n > 0 else None
        history = self._history(view)
        if self._config.tree_nodes and history is None and not draws(view.request.params):
            return Tree(view, cached, depth, min(self._config.tree_nodes, budget), self._config.tree_beam)
        return Chain(view, cached, depth, history)

    def _depth(self, view: RequestView) -> int:
        """Tokens worth drafting: the last one of a text comes without a draft."""
        n_output = len(view.context) - view.n_prompt
        return min(self._config.draft_tokens, view.request.params.max_tokens - n_output - 1)

    def _fits(self, view: RequestView) -> bool:
        """Whether the drafter can read so far; a text that outgrows it gives its room back."""
        if len(view.context) + self._config.draft_tokens <= self.drafter.info.max_model_len:
            return True
        self.drafter.evict(view)
        return False

    def _reserve(self, view: RequestView, depth: int) -> bool:
        """Room for the text and what a draft scores behind it."""
        per_depth = self._config.tree_beam if self._config.tree_nodes else 1
        return self.drafter.reserve(view, len(view.context) + per_depth * (depth - 1))

    def _history(self, view: RequestView) -> History | None:
        """What penalties have to know, without the draft."""
        from engine.sampling.history import History

        params = view.request.params
        if not params.remembers:
            return None
        tokens = view.context.view.tolist()
        return History(tokens[: view.n_prompt], tokens[view.n_prompt :])


DRAFT_MODEL = Method(
    name="draft-model",
    factory=lambda settings, context: DraftModel(
        replace(settings, path=settings.path or context.options.draft_model)
    ),
    description="a small model of the same vocabulary drafts a tree",
    settings=DraftModelConfig,
    needs=("draft_model",),
    section="draft_model_options",
)
