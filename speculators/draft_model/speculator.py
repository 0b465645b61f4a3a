"""Speculative sampling with a small model (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

A small model of the same vocabulary drafts ``draft_tokens`` tokens, with one forward pass per depth for all requests.
Coupled sampling draws the draft with the target's own noise, so acceptance hardly falls with the temperature. With
``verification="rejection"`` drafts are independent draws, and carry the distribution they came from.

The published draft is a chain. The default is a tree of the same depth, for as many forward passes
(``engine.drafter.trees.levels``): more of it is accepted at equal numbers of nodes (docs/methods/draft-model.md).
Independent draws and requests with penalties get a chain, because penalties depend on the path of every node.

The KV cache is paged and has a fixed size. A request without room in it decodes without drafts. A request whose text is
not in the cache reads it in chunks: one per prompt chunk of the target, and at most ``prefill_chunk`` tokens per step
over all requests. Other requests do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.errors import ConfigError
from engine.protocol import BatchSpeculator, Branch, Needs, Outcome, RequestView
from speculators.draft_model.config import DraftModelConfig
from speculators.method import Method, MethodContext

if TYPE_CHECKING:  # torch is imported with the first model, so that other methods need none
    from engine.sampling.keys import NoiseKey
    from engine.sampling.randomness import Randomness
    from speculators.draft_model.drafting import Drafting
    from speculators.draft_model.runner import DraftModelRunner


class DraftModel(BatchSpeculator):
    """Drafts what a small model would write.

    Args:
        config: which model, and how it drafts.
        runner: a loaded model; otherwise ``config.path`` is loaded when the first request begins.
        randomness: where independent draws come from; tests enumerate it.

    Raises:
        ConfigError: there is no such model.
    """

    name = "draft-model"
    needs = Needs()

    def __init__(
        self,
        config: DraftModelConfig,
        runner: DraftModelRunner | None = None,
        randomness: Callable[[NoiseKey], Randomness] | None = None,
    ) -> None:
        self._config = config
        self._runner = runner
        self._randomness = randomness
        self._drafting: Drafting | None = None
        self._failure = ""  # why the model could not be loaded
        if runner is None:
            from engine.model.loader import load_spec
            from engine.model.resolve import resolve

            load_spec(resolve(config.options.model, weights=()))

    @property
    def drafting(self) -> Drafting:
        """The loaded model's drafts. A failed load raises and is not repeated, because requests would wait for it."""
        if self._failure:
            raise ConfigError(self._failure)
        if self._drafting is None:
            from speculators.draft_model.drafting import Drafting

            try:
                self._drafting = Drafting(self._config, self._runner, self._randomness)
            except Exception as error:
                self._failure = f"the draft model could not be loaded: {error!r}"
                raise
        return self._drafting

    def begin(self, view: RequestView) -> None:
        """Admit a request; raise ConfigError if the target has another vocabulary."""
        runner = self.drafting.runner
        n = runner.info.spec.vocab_size
        if n != view.vocab_size:
            raise ConfigError(
                f"--draft-model has {n} token ids, the target {view.vocab_size}: both must use the same tokenizer"
            )
        runner.begin(view)

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        if not outcome.tokens:  # a chunk of a long prompt
            self.drafting.read_ahead(view)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        return self.propose_batch((view,), (budget,))[0]

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        return self.drafting.draft(views, budgets, self.name)

    def end(self, view: RequestView) -> None:
        if self._drafting is not None:
            self._drafting.runner.end(view.request_id)


def _draft_model(settings: DraftModelConfig, context: MethodContext) -> DraftModel:
    return DraftModel(replace(settings, path=settings.path or context.options.draft_model))


DRAFT_MODEL = Method(
    name="draft-model",
    factory=_draft_model,
    description="a small model of the same vocabulary drafts a tree",
    source="arXiv 2211.17192 and 2302.01318",
    settings=DraftModelConfig,
    needs=("draft_model",),
    section="draft_model_options",
)
