"""Settings of the mixed model, and the names of its sources."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError
from speculators.settings import Settings, setting
from speculators.successors.candidates import MAX_CANDIDATES
from speculators.successors.table import TAIL

TEXT, TARGET, CORPUS = SOURCES = ("suffix", "token-recycling", "spectra-retrieval")


@dataclass(frozen=True, slots=True)
class SuccessorConfig(Settings):
    """Settings of the mixed model.

    A request takes at most 144 bytes for each of ``target_rows`` and 48 for each of ``text_rows`` at the defaults, that
    is 4.7 and 1.6 MB; short texts take less.
    """

    top_k: int = setting(
        16, "most probable ids read back after every node and prompt position", at_least=1, at_most=MAX_CANDIDATES
    )
    target_orders: tuple[int, ...] = setting(
        (1, 2, 3, 5), "context lengths, in tokens, for which the target's probabilities are kept"
    )
    text_orders: tuple[int, ...] = setting(
        (1, 2, 3, 4, 6, 8), "context lengths, in tokens, whose successors in the text are counted"
    )
    corpus_orders: tuple[int, ...] = setting(
        (1, 2, 3, 4, 6, 8), "context lengths, in tokens, that are looked up in the corpus"
    )
    text_width: int = setting(4, "different successors counted per context", at_least=1)
    target_rows: int = setting(32768, "contexts whose target probabilities are kept", at_least=4, at_most=1 << 24)
    text_rows: int = setting(32768, "contexts whose successors in the text are kept", at_least=4, at_most=1 << 24)
    recent: int = setting(
        32, "recently probable tokens, drafted after unknown contexts", at_least=1, at_most=MAX_CANDIDATES // 2
    )
    recent_decay: float = setting(
        0.98, "factor on the weight of recent tokens per scored context", at_least=0.0, at_most=1.0
    )
    recent_trust: float = setting(
        0.3, "share of the unexplained probability that recent tokens get at temperature 0", at_least=0.0, at_most=1.0
    )
    recent_trust_sampling: float = setting(1.0, "the same share at temperatures above 0", at_least=0.0, at_most=1.0)
    adapt: float = setting(0.03, "learning rate of the trust in each source; 0: fixed", at_least=0.0, at_most=1.0)
    least: float = setting(1e-5, "path probability below which no node is drafted", at_least=0.0, at_most=1.0)
    prompt_window: int = setting(8192, "last tokens of a long prompt whose successors are counted", at_least=0)
    shared: bool = setting(False, "whether all requests of a scope share one state")
    prompts: int = setting(
        0, "with shared: states kept per scope, one for each of the latest prompts; 0: one for all prompts", at_least=0
    )

    def check(self) -> None:
        for name in ("target_orders", "text_orders", "corpus_orders"):
            orders = getattr(self, name)
            if list(orders) != sorted(set(orders)) or not all(1 <= order <= TAIL for order in orders):
                raise ConfigError(f"{name} is {orders}; it must be ascending numbers from 1 to {TAIL}")
