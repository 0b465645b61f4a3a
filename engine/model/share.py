"""The share of a stage's weights and heads that one tensor-parallel rank has.

Queries, keys, values, gate and up are split by outputs, attention's output and down by inputs (Megatron-LM, arXiv
1909.08053, section 3), the head by vocabulary, the KV cache by key heads. Of a mixture of experts each rank has some
experts as a whole. Embedding, norms and routers are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.errors import ConfigError
from engine.model.matrices.part import INNER, OUTER, WeightPart
from engine.model.spec import ModelSpec

LEAVES = 8  # of the sums of ``numerics exact``, which ranks share
EXACT_SIZES = (1, 2, 4, 8)  # ranks that can share them


@dataclass(frozen=True, slots=True)
class RankShare:
    """Rank ``rank`` of the ``size`` ranks of a stage; rank 0 leads."""

    rank: int = 0
    size: int = 1

    def spec(self, whole: ModelSpec) -> ModelSpec:
        """Return the spec with the heads of this rank. Where ranks exceed key heads, some share one."""
        key_heads = max(1, whole.n_kv_heads // self.size)
        return replace(whole, n_heads=whole.n_heads // self.size, n_kv_heads=key_heads)

    def own_experts(self, whole: ModelSpec) -> range:
        """Return the numbers of the experts that this rank has in every layer."""
        first, last = (rank * whole.n_experts // self.size for rank in (self.rank, self.rank + 1))
        return range(first, last)

    def has(self, parameter: str, whole: ModelSpec) -> bool:
        """Return whether this rank has any part of a parameter: not those of other ranks' experts."""
        number = expert_number(parameter)
        return number is None or number in self.own_experts(whole)

    def part(
        self, parameter: str, shape: Sequence[int], whole: ModelSpec, is_gathered: bool = False
    ) -> WeightPart | None:
        """Return this rank's part of a parameter of Hugging Face's causal LM; None: all of it, if ``has`` is true.

        Args:
            parameter: its name, such as ``model.layers.0.mlp.down_proj.weight``.
            shape: of the whole parameter.
            whole: spec of the whole model.
            is_gathered: whether attention's output and down are split by outputs, too (``GatheredLinear``).
        """
        if self.size == 1 or expert_number(parameter) is not None:
            return None
        owner, _, kind = parameter.rpartition(".")
        match owner.rpartition(".")[2]:
            case "q_proj" | "gate_proj" | "up_proj":
                return self._equal_part(OUTER, shape[0])
            case "k_proj" | "v_proj":
                width = shape[0] // whole.n_kv_heads
                heads = max(1, whole.n_kv_heads // self.size)
                first = self.rank * whole.n_kv_heads // self.size
                return WeightPart(OUTER, first * width, (first + heads) * width)
            case "o_proj" | "down_proj" if is_gathered:
                return self._equal_part(OUTER, shape[0])
            case "o_proj" | "down_proj" if kind == "weight":
                return self._equal_part(INNER, shape[1])
            case "lm_head":
                width = -(-shape[0] // self.size)
                return WeightPart(OUTER, self.rank * width, (self.rank + 1) * width)
        return None

    def _equal_part(self, dim: int, n: int) -> WeightPart:
        width = n // self.size
        return WeightPart(dim, self.rank * width, (self.rank + 1) * width)

    def own_heads(self, heads: Sequence[tuple[int, int]], n: int) -> tuple[tuple[int, int], ...]:
        """Return (layer, query head) pairs with this rank's numbers of its ``n`` heads; -1 replaces others."""
        return tuple((layer, head - n * self.rank if head // n == self.rank else -1) for layer, head in heads)


WHOLE = RankShare()


def expert_number(parameter: str) -> int | None:
    """Return the number of the expert that a parameter belongs to, such as ``model.layers.0.mlp.experts.5...``."""
    _, is_expert, rest = parameter.partition(".mlp.experts.")
    return int(rest.partition(".")[0]) if is_expert else None


def check_ranks(size: int, spec: ModelSpec, is_exact: bool = False) -> None:
    """Raise ConfigError if a model cannot be split over ``size`` ranks; names the allowed sizes.

    Args:
        size: ranks of a stage.
        spec: of the whole model.
        is_exact: whether numerics are ``exact``, whose sums have ``LEAVES`` leaves.
    """
    allowed = allowed_sizes(spec, is_exact)
    if size in allowed:
        return
    mlp = f"{spec.n_experts} experts" if spec.n_experts else f"an MLP of {spec.mlp_size}"
    why = f"{spec.n_heads} query heads, {spec.n_kv_heads} key heads and {mlp}"
    exact = f", and numerics exact allow only {', '.join(map(str, EXACT_SIZES))}" if is_exact else ""
    raise ConfigError(
        f"tensor_parallel is {size}; this model has {why}, which {', '.join(map(str, allowed))} ranks can share{exact}"
    )


def allowed_sizes(spec: ModelSpec, is_exact: bool = False) -> list[int]:
    """Return the numbers of ranks that can share a model, ascending; arguments as for ``check_ranks``."""
    shared = spec.n_experts or spec.mlp_size  # whole experts, or columns of the MLP

    def fits(size: int) -> bool:
        shares_keys = spec.n_kv_heads % size == 0 or size % spec.n_kv_heads == 0
        return spec.n_heads % size == 0 and shares_keys and shared % size == 0

    if not is_exact:
        return [size for size in range(1, spec.n_heads + 1) if fits(size)]
    has_leaves = shared % LEAVES == 0 and spec.n_heads * spec.head_dim % LEAVES == 0
    return [size for size in EXACT_SIZES if size == 1 or (has_leaves and fits(size))]
