"""Bundles of Ray's placement groups, in which the processes of a pipeline's stages run.

The replica's own group has a bundle for every stage; Ray keeps them together until the replica ends. A bundle of it can
be neither moved nor given back while its node drains: it comes up elsewhere once the node is gone. What more is needed,
for standbys and for stages that leave a draining node, gets a group of one bundle each, which can be given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import ray
from ray._private.state import available_resources_per_node
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

NODE_LABEL = "ray.io/node-id"  # Ray gives it to every node
ANSWER_S = 5  # for the GCS
STRICT_SPREAD = "strict_spread"


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """The place of one stage's process."""

    group: PlacementGroup
    index: int
    is_own: bool  # of the replica's own group: stays until the replica ends


class Bundles:
    """Bundles of one pipeline.

    Args:
        group: the replica's own.
        resources: of one stage.
        strategy: of ``PipelineOptions.placement``; with "strict_spread" further bundles are on nodes of their own too.
        stays: further bundles are on the replica's own node.
    """

    def __init__(
        self, group: PlacementGroup, resources: Mapping[str, float], strategy: str, stays: bool = False
    ) -> None:
        context = ray.get_runtime_context()
        self.own = [Bundle(group, i, is_own=True) for i in range(group.bundle_count)]
        self.here: str = context.get_node_id()
        self._resources = dict(resources)
        self._strategy = strategy
        self._stays = stays
        self._gcs = GcsClient(address=context.gcs_address)

    async def draining(self) -> frozenset[str]:
        """Ids of the nodes that are about to end. Like the calls below, raises what Ray does without its GCS."""
        return frozenset(await asyncio.to_thread(self._draining))

    def _draining(self) -> Collection[str]:
        nodes: dict[str, int] = self._gcs.get_draining_nodes(timeout=ANSWER_S)
        return nodes.keys()

    async def nodes(self, bundles: Iterable[Bundle]) -> dict[Bundle, str]:
        """The node of every bundle; "": it waits for one."""
        return await asyncio.to_thread(_nodes, list(bundles))

    async def reserve(self, away_from: Collection[str]) -> Bundle:
        """A bundle more. It has its node once there is room, and none of the nodes ``away_from`` if others have room
        now."""
        return await asyncio.to_thread(self._reserve, away_from)

    def _reserve(self, away_from: Collection[str]) -> Bundle:
        is_apart = (
            not self._stays and bool(away_from) and (self._strategy == STRICT_SPREAD or self._has_room(away_from))
        )
        selectors = selectors_of(self.here if self._stays else None, away_from if is_apart else ())
        return Bundle(placement_group([self._resources], bundle_label_selector=selectors), 0, is_own=False)

    def _has_room(self, away_from: Collection[str]) -> bool:
        unfit = {*away_from, *self._draining()}
        return any(
            all(free.get(name, 0.0) >= amount for name, amount in self._resources.items())
            for node, free in available_resources_per_node().items()
            if node not in unfit
        )

    async def release(self, bundle: Bundle) -> None:
        """Give back a bundle that was reserved; ends what runs in it."""
        assert not bundle.is_own, "the replica's own bundles end with it"
        await asyncio.to_thread(remove_placement_group, bundle.group)


def selectors_of(here: str | None, away_from: Collection[str]) -> list[dict[str, str]] | None:
    """What Ray is told of the node of a group's one bundle: ``here`` alone, or none of ``away_from``; None: any node,
    for which Ray takes no empty list."""
    if here is not None:
        return [{NODE_LABEL: here}]
    return [{NODE_LABEL: f"!in({','.join(sorted(away_from))})"}] if away_from else None


def _nodes(bundles: Iterable[Bundle]) -> dict[Bundle, str]:
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    found = {}
    for bundle in bundles:
        node = placement_group_table(bundle.group).get("bundles_to_node_id", {}).get(bundle.index, "")
        found[bundle] = node if node in alive else ""
    return found
