"""Chooses how many programs of attention share a GPU, and how many stages their copy pipelines have.

Both numbers depend on the card. They change no order of sums, hence no bit of a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

SMALL_HEAD = 64  # largest head_dim for which the registers of a multiprocessor hold two programs of attention
# Tiles of keys (and of values) that Triton holds in shared memory, by the number of stages. With 5 stages it copies two
# tiles while one is multiplied. With 2 no copy overlaps; 3 and 4 hold as many tiles as 2.
_TILES_HELD = {5: 3, 2: 2}


@dataclass(frozen=True, slots=True)
class Card:
    """Limits of a GPU.

    Args:
        multiprocessors: number of multiprocessors.
        shared_bytes: largest shared memory of a program.
    """

    multiprocessors: int
    shared_bytes: int


HOPPER = Card(132, 227 << 10)  # an H100 or H200


@cache
def get_card(device: torch.device) -> Card:
    """Return the limits of a device; without CUDA those of a Hopper GPU, for which kernels are then compiled."""
    if device.type != "cuda":
        return HOPPER
    properties = torch.cuda.get_device_properties(device)
    return Card(properties.multi_processor_count, properties.shared_memory_per_multiprocessor - 1024)  # CUDA's own KiB


def count_attention_programs(device: torch.device, n_kv_heads: int, head_dim: int) -> int:
    """Return the programs of ``attend`` for each of ``n_kv_heads`` key heads that attend at once.

    All of them run at the same time; more would wait until the first ones end.
    """
    resident = 2 if head_dim <= SMALL_HEAD else 1
    return max(1, get_card(device).multiprocessors * resident // n_kv_heads)


def count_pipeline_stages(device: torch.device, rows_bytes: int, tile_bytes: int) -> int:
    """Return the stages of attention's copy pipeline: as many as the device's shared memory holds.

    Args:
        device: runs attention.
        rows_bytes: bytes of a tile of query rows.
        tile_bytes: bytes of a tile of keys, and of one of values.
    """
    held = get_card(device).shared_bytes
    return next((stages for stages in _TILES_HELD if count_shared_bytes(stages, rows_bytes, tile_bytes) <= held), 1)


def count_shared_bytes(stages: int, rows_bytes: int, tile_bytes: int) -> int:
    """Return an upper bound of the shared memory of a program of ``attend``; 1 KiB of it is for the slots of tiles."""
    return rows_bytes + 2 * tile_bytes * _TILES_HELD[stages] + 1024
