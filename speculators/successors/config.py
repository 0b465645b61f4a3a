"""Settings of the mixed model, and the names of its parts."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError
from speculators.successors.candidates import MAX_CANDIDATES
from speculators.successors.table import TAIL

TEXT, TARGET, CORPUS = "suffix", "token-recycling", "spectra-retrieval"  # the sources a node can come from


@dataclass(frozen=True, slots=True)
class SuccessorConfig:
    """Settings of the mixed model.

    Memory per request: at most ``target_rows`` rows of 144 bytes at the defaults and ``text_rows`` of 48, that is 4.7
    and 1.6 MB; short texts take less.

    Raises:
        ConfigError: a value is out of range.
    """

    top_k: int = 16  # ids read back behind every node and prompt position
    target_orders: tuple[int, ...] = (1, 2, 3, 5)  # lengths of context the target's probabilities are kept for, tokens
    text_orders: tuple[int, ...] = (1, 2, 3, 4, 6, 8)  # lengths of context whose successors are counted, tokens
    corpus_orders: tuple[int, ...] = (1, 2, 3, 4, 6, 8)  # lengths of context that are looked up, tokens
    text_width: int = 4  # different successors counted per context
    target_rows: int = 32768  # contexts of all lengths, at most
    text_rows: int = 32768
    recent: int = 32  # tokens of the fallback for contexts never seen
    recent_decay: float = 0.98  # per context scored
    recent_trust: float = 0.3  # share of what no table explains that goes to recent tokens, greedy
    recent_trust_sampling: float = 1.0  # the same when the target samples
    adapt: float = 0.03  # how fast trusts follow what proves right; 0: never
    least: float = 1e-5  # path probability below which no node is drafted
    prompt_window: int = 8192  # last tokens of a long prompt that are learnt from
    shared: bool = False  # one state for all requests of a scope, instead of one per request
    prompts: int = 0  # of what is shared: states kept per scope, one for each of its latest prompts; 0: one for all

    def __post_init__(self) -> None:
        least = {
            "top_k": 1,
            "text_width": 1,
            "target_rows": 4,
            "text_rows": 4,
            "recent": 1,
            "prompt_window": 0,
            "prompts": 0,
        }
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise ConfigError(f"successors: {name} must be at least {minimum}, got {getattr(self, name)}")
        for name in ("recent_decay", "recent_trust", "recent_trust_sampling", "adapt", "least"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"successors: {name} must lie in 0..1, got {getattr(self, name)}")
        if self.recent > MAX_CANDIDATES // 2:
            raise ConfigError(f"successors: recent must be at most {MAX_CANDIDATES // 2}, got {self.recent}")
        for name in ("target_orders", "text_orders", "corpus_orders"):
            orders = getattr(self, name)
            if list(orders) != sorted(set(orders)) or not all(1 <= order <= TAIL for order in orders):
                raise ConfigError(f"successors: {name} must ascend within 1..{TAIL}, got {orders}")
