"""Drafts of ``draft-model``: what the draft model reads, and how chains and trees grow by its forward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.drafter.trees.choice import Choice, choose_tokens, draft_randomness
from engine.drafter.trees.draft_tree import DraftRequest, DraftTree
from engine.drafter.trees.growth import RankedTree, start_chain
from engine.protocol import Branch, RequestView
from engine.sampling.history import History
from engine.sampling.keys import NoiseKey
from engine.sampling.noise import Randomness
from engine.tree import ROOT, TokenTree
from speculators.draft_model.config import DraftModelConfig
from speculators.draft_model.runner import CachedSequence, DraftModelRunner, SequenceRows


class Drafting:
    """Drafts for all requests together, with one forward pass per depth; loads the model without a ``runner``."""

    def __init__(
        self,
        config: DraftModelConfig,
        runner: DraftModelRunner | None,
        randomness: Callable[[NoiseKey], Randomness] | None,
    ) -> None:
        self.runner = runner or DraftModelRunner.load(config.options)
        self._config = config
        self._randomness = randomness or draft_randomness

    def read_ahead(self, view: RequestView) -> None:
        """Read a chunk of the prompt into the cache, while the target reads the prompt in chunks."""
        if self._fits(view):
            cached = self.runner.cached[view.request_id]
            n = min(self._config.prefill_chunk, len(view.context) - 1 - cached.n)
            if n > 0 and self.runner.reserve(view, len(view.context)):
                self.runner.forward([_text_rows(view, cached, n)])

    def draft(self, views: Sequence[RequestView], budgets: Sequence[int], source: str) -> list[list[Branch]]:
        """Return the branches of every request, in order."""
        try:
            drafts, chunks = self._begin_drafts(views, budgets)
            growing = [draft for draft in drafts if draft is not None]
            while growing or chunks:
                logits = self.runner.forward([*chunks, *(draft.rows for draft in growing)])
                asks = [draft.growth.choice_requests() for draft in growing]
                choices = iter(choose_tokens(logits, [ask for some in asks for ask in some], self._randomness))
                grew = [draft.take([next(choices) for _ in some]) for draft, some in zip(growing, asks, strict=True)]
                growing = [draft for draft, has_more in zip(growing, grew, strict=True) if has_more]
                chunks = []
        except Exception:
            for view in views:  # the cache may lack rows that count as cached
                self.runner.evict(view)
            raise
        branches = [None if draft is None else draft.growth.branch(source) for draft in drafts]
        return [[] if branch is None else [branch] for branch in branches]

    def _begin_drafts(
        self, views: Sequence[RequestView], budgets: Sequence[int]
    ) -> tuple[list[_ModelDraft | None], list[SequenceRows]]:
        """Return a draft per request, and chunks of the texts that are not in the cache yet.

        Requests whose cache lags by more than one step's tokens share ``prefill_chunk`` tokens of reading.
        """
        drafts: list[_ModelDraft | None] = []
        chunks: list[SequenceRows] = []
        room, few = self._config.prefill_chunk, self._config.draft_tokens + 1
        per_depth = self._config.tree_beam if self._config.tree_nodes else 1
        for view, budget in zip(views, budgets, strict=True):
            draft, n_output = None, len(view.context) - view.n_prompt
            depth = min(self._config.draft_tokens, view.request.params.max_tokens - n_output - 1, budget)
            n_rows = len(view.context) + per_depth * (depth - 1)
            if depth > 0 and self._fits(view) and self.runner.reserve(view, n_rows):
                cached = self.runner.cached[view.request_id]
                cached.sync(view.context.view)
                lag = len(view.context) - cached.n
                n = lag if lag <= few else min(lag, room)
                room -= n if lag > few else 0
                if n == lag:
                    draft = _ModelDraft(view, cached, self._growth(view, depth, budget))
                elif n > 0:
                    chunks.append(_text_rows(view, cached, n))
            drafts.append(draft)
        return drafts, chunks

    def _growth(self, view: RequestView, depth: int, budget: int) -> DraftTree:
        """Return an empty tree; a chain for independent draws, and for penalties, which depend on a node's own path."""
        params, n_nodes, position = view.request.params, self._config.tree_nodes, len(view.context)
        root = int(view.context.view[-1])
        if n_nodes and not params.remembers and not params.rejects:
            request = DraftRequest(params, None, root, position, depth, min(n_nodes, budget))
            return RankedTree(request, depth, self._config.tree_beam)
        tokens = view.context.view.tolist() if params.remembers else []
        history = History(tokens[: view.n_prompt], tokens[view.n_prompt :]) if params.remembers else None
        return start_chain(DraftRequest(params, history, root, position, depth, depth), depth)

    def _fits(self, view: RequestView) -> bool:
        """Return whether text and draft fit into the model's positions; if not, evict the request."""
        if len(view.context) + self._config.draft_tokens <= self.runner.info.max_model_len:
            return True
        self.runner.evict(view)
        return False


def _text_rows(view: RequestView, cached: CachedSequence, n: int, with_logits: Sequence[int] = ()) -> SequenceRows:
    """Return the next ``n`` tokens of the context that are not in the cache, and count them as cached."""
    first = cached.n
    cached.n += n
    return SequenceRows(view.request_id, first, view.context.view[first : first + n].tolist(), None, with_logits)


class _ModelDraft:
    """A draft that grows; ``rows`` are those of the next forward pass, first the tokens that the cache lacks.

    The rows of a chain stay in the cache. The expanded nodes of a tree are scored again at every depth, so that the
    cache holds committed text only.
    """

    def __init__(self, view: RequestView, cached: CachedSequence, growth: DraftTree) -> None:
        n = len(view.context) - cached.n
        self.rows = _text_rows(view, cached, n, (n - 1,))
        self.growth = growth
        self._view = view
        self._cached = cached
        self._nodes: dict[int, int] = {}  # expanded node of ``growth`` -> its node in the tree of the next forward pass

    def take(self, choices: Sequence[Choice]) -> bool:
        """Grow by one choice per ask; return whether there is more to score."""
        new = self.growth.grow(choices)
        if new:
            self.rows = self._chain_rows(new[-1]) if self.growth.is_chain else self._tree_rows(new)
        return bool(new)

    def _chain_rows(self, last: int) -> SequenceRows:
        token = self.growth.tokens[last]
        self._cached.drafted.append(token)
        return SequenceRows(self._view.request_id, len(self._view.context) + last, [token], None, (0,))

    def _tree_rows(self, expanded: list[int]) -> SequenceRows:
        new = range(len(self._nodes), len(self._nodes) + len(expanded))
        self._nodes.update(zip(expanded, new, strict=True))
        parents = [self._nodes.get(self.growth.parents[node], ROOT) for node in self._nodes]
        tree = TokenTree([self.growth.tokens[node] for node in self._nodes], parents)
        context = self._view.context.view
        return SequenceRows(self._view.request_id, len(context) - 1, [int(context[-1])], tree, [i + 1 for i in new])
