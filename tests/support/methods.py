"""Names of the built-in methods."""

from __future__ import annotations

from speculators.methods import BUILT_IN

AVAILABLE = tuple(method.name for method in BUILT_IN)
TRAINED = tuple(method.name for method in BUILT_IN if method.is_trained)
NEEDS_INPUT = tuple(method.name for method in BUILT_IN if method.needs)
STANDALONE = tuple(name for name in AVAILABLE if name not in NEEDS_INPUT)
