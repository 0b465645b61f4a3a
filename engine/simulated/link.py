"""The wire between two simulated stages: hidden states of a model's size take their time, though none travel.

The moment at which they would arrive travels instead. Both ends read the same clock, so stages with simulated links
must run on one machine.
"""

from __future__ import annotations

import torch

from engine.simulated.profile import PipelineProfile
from engine.stage.base import Activations

LONGEST_S = 60.0  # seconds; a moment further away is another machine's clock


class SimulatedLink:
    """One stage's ends of the wires before and behind it."""

    def __init__(self, profile: PipelineProfile) -> None:
        self._profile = profile
        self._free_at = 0.0  # when the wire behind this stage has sent what it was given

    def arrival(self, incoming: Activations | None, now: float) -> float:
        """``time.perf_counter`` when the hidden states arrive; ``now`` if they have, or on the first stage."""
        if incoming is None:
            return now
        moment = float(incoming.hidden.reshape(-1).contiguous().view(torch.float64)[0])
        return moment if now < moment < now + LONGEST_S else now

    def departure(self, ended: float, n_rows: int) -> Activations:
        """What a stage sends that finished ``n_rows`` rows at ``ended``: the moment of arrival as fp32 ``[1, 1, 2]``.

        The wire is busy with one step after the other; its latency does not delay the next send.
        """
        self._free_at = max(self._free_at, ended) + self._profile.wire_seconds(n_rows)
        moment = torch.tensor([self._free_at + self._profile.link_latency_s], dtype=torch.float64)
        return Activations(moment.view(torch.float32).reshape(1, 1, 2))
