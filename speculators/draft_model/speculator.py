"""Speculative sampling with a small model (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

A small model of the same vocabulary drafts ``draft_tokens`` tokens, with one forward pass per depth for all requests.
Coupled sampling draws the draft with the target's own noise, so acceptance hardly falls with the temperature. With
``verification="rejection"`` drafts are independent draws, and carry the distribution they came from.

The published draft is a chain. The default is a tree of the same depth, of which more is accepted at equal numbers of
nodes (docs/methods/draft-model.md). Independent draws and requests with penalties get a chain.

The KV cache has a fixed size; a request without room in it decodes without drafts. Texts are read in chunks: one per
prompt chunk of the target, and at most ``prefill_chunk`` tokens per step, which delays no other request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.errors import ConfigError
from engine.protocol import BatchSpeculator, Branch, Needs, Outcome, RequestView
from speculators.draft_model.config import DraftModelConfig
from speculators.method import Method

if TYPE_CHECKING:  # torch is imported with the first model, so that other methods need none
    from engine.sampling.keys import NoiseKey
    from engine.sampling.noise import Randomness
    from speculators.draft_model.drafting import Drafting
    from speculators.draft_model.runner import DraftModelRunner


class DraftModel(BatchSpeculator):
    """Drafts what a small model would write: that of ``runner``, or of ``config.path``, loaded by the first request.

    ``randomness`` is where independent draws come from. ConfigError is raised if there is no such model.
    """

    name = "draft-model"
    needs = Needs()
    has_weights = True  # a draft takes milliseconds

    def __init__(
        self,
        config: DraftModelConfig,
        runner: DraftModelRunner | None = None,
        randomness: Callable[[NoiseKey], Randomness] | None = None,
    ) -> None:
        self._config, self._runner = config, runner
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


DRAFT_MODEL = Method(
    name="draft-model",
    factory=lambda settings, context: DraftModel(replace(settings, path=settings.path or context.options.draft_model)),
    description="a small model of the same vocabulary drafts a tree",
    source="arXiv 2211.17192 and 2302.01318",
    settings=DraftModelConfig,
    needs=("draft_model",),
    section="draft_model_options",
)
