"""Bundles of Ray's placement groups, in which the processes of a pipeline's stages run.

The replica's own group has a bundle for every stage; Ray keeps them together until the replica ends. A bundle of it can
be neither moved nor given back while its node drains: it comes up elsewhere once the node is gone. Standbys and
replacements of stages on draining nodes get a group of one bundle each, which can be given back. All tensor-parallel
ranks of a stage share its bundle, and hence its node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import ray
from ray._private.state import available_resources_per_node
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

NODE_LABEL = "ray.io/node-id"  # Ray gives it to every node
ANSWER_S = 5  # seconds for an answer of the GCS
STRICT_SPREAD = "strict_spread"


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """The place of one process; the ranks of a stage have one each, with the same group and index."""

    group: PlacementGroup
    index: int
    is_own: bool  # of the replica's own group: stays until the replica ends

    def is_with(self, other: Bundle) -> bool:
        """Whether both are of the same stage."""
        return (self.group, self.index) == (other.group, other.index)


class Bundles:
    """Bundles of one pipeline.

    Args:
        group: the replica's own.
        resources: of one stage.
        strategy: of ``PipelineOptions.placement``; with "strict_spread" further bundles are on nodes of their own too.
        stays: further bundles are on the replica's own node.
        n_ranks: processes of a stage.
    """

    def __init__(
        self,
        group: PlacementGroup,
        resources: Mapping[str, float],
        strategy: str,
        stays: bool = False,
        n_ranks: int = 1,
    ) -> None:
        context = ray.get_runtime_context()
        self.own = [Bundle(group, i, is_own=True) for i in range(group.bundle_count) for _ in range(n_ranks)]
        self.n_ranks = n_ranks
        self.here: str = context.get_node_id()
        self._resources = dict(resources)
        self._strategy = strategy
        self._stays = stays
        self._gcs = GcsClient(address=context.gcs_address)

    async def draining(self) -> frozenset[str]:
        """Ids of the draining nodes. Like the calls below, raises an error of Ray when the GCS does not answer."""
        return frozenset(await asyncio.to_thread(self._draining))

    def _draining(self) -> Collection[str]:
        nodes: dict[str, int] = self._gcs.get_draining_nodes(timeout=ANSWER_S)
        return nodes.keys()

    async def nodes(self, bundles: Iterable[Bundle]) -> dict[Bundle, str]:
        """The node of every bundle; "": Ray has not placed it."""
        return await asyncio.to_thread(_nodes, list(bundles))

    async def reserve(self, away_from: Collection[str]) -> list[Bundle]:
        """Reserve the bundles of another stage, away from the nodes ``away_from`` if others have room.

        Ray places them once it can.
        """
        return await asyncio.to_thread(self._reserve, away_from)

    def _reserve(self, away_from: Collection[str]) -> list[Bundle]:
        is_apart = (
            not self._stays and bool(away_from) and (self._strategy == STRICT_SPREAD or self._has_room(away_from))
        )
        selectors = selectors_of(self.here if self._stays else None, away_from if is_apart else ())
        group = placement_group([self._resources], bundle_label_selector=selectors)
        return [Bundle(group, 0, is_own=False) for _ in range(self.n_ranks)]

    def _has_room(self, away_from: Collection[str]) -> bool:
        unfit = {*away_from, *self._draining()}
        return any(
            all(free.get(name, 0.0) >= amount for name, amount in self._resources.items())
            for node, free in available_resources_per_node().items()
            if node not in unfit
        )

    async def release(self, bundle: Bundle) -> None:
        """Give back a reserved bundle; the processes of its stage end."""
        assert not bundle.is_own, "the replica's own bundles end with it"
        await asyncio.to_thread(remove_placement_group, bundle.group)


class FreeBundles:
    """The bundles of a pipeline that no process uses, and the draining nodes.

    Args:
        bundles: of the pipeline.
        stage_nodes: returns the nodes that have a stage: bundles are reserved on others if possible.
    """

    def __init__(self, bundles: Bundles, stage_nodes: Callable[[], Collection[str]]) -> None:
        self.draining: frozenset[str] = frozenset()  # nodes
        self.vacant: list[Bundle] = []
        self._bundles = bundles
        self._stage_nodes = stage_nodes
        self._nodes: dict[Bundle, str] = {}  # of vacant bundles, at the last refresh

    @property
    def is_owner_draining(self) -> bool:
        """Whether the node of the pipeline's owner is draining."""
        return self._bundles.here in self.draining

    async def refresh(self) -> None:
        """Read from Ray which nodes are draining, and which nodes the vacant bundles are on."""
        self.draining = await self._bundles.draining()
        self._nodes = await self._bundles.nodes(self.vacant) if self.vacant else {}

    def vacate(self, bundle: Bundle) -> None:
        """Add a bundle whose process has ended, or is about to."""
        self.vacant.append(bundle)

    async def choose(self) -> list[Bundle]:
        """Take bundles for all ranks of a stage: vacant ones on a node that is not draining, or else reserved ones.

        The replica's own bundles go first, because they cannot be given back. One that has lost its node gets another
        node sooner than a reserved bundle would get one.
        """
        usable = [bundle for bundle, node in self._nodes.items() if node and node not in self.draining]
        waiting = [bundle for bundle, node in self._nodes.items() if not node and bundle.is_own]
        for bundle in (*sorted(usable, key=lambda one: not one.is_own), *waiting):
            if len(ranks := self._vacant_with(bundle)) == self._bundles.n_ranks:
                return [self.occupy(rank) for rank in ranks]
        return await self._bundles.reserve(self._stage_nodes())

    def _vacant_with(self, bundle: Bundle) -> list[Bundle]:
        return [one for one in self.vacant if one.is_with(bundle)]

    def occupy(self, bundle: Bundle) -> Bundle:
        """Take a vacant bundle for a process."""
        self.vacant.remove(bundle)
        return bundle

    def usable_own(self) -> list[Bundle]:
        """Vacant bundles of the replica's own on nodes that are not draining."""
        found = self._nodes.items()
        return [one for one, node in found if one.is_own and one in self.vacant and node and node not in self.draining]

    async def release_reserved(self) -> None:
        """Give back the bundles that were reserved and had no process at the last refresh."""
        for bundle in [bundle for bundle in self._nodes if bundle in self.vacant and not bundle.is_own]:
            ranks = self._vacant_with(bundle)
            if len(ranks) == self._bundles.n_ranks:
                await self._bundles.release(bundle)
                for rank in ranks:
                    self.vacant.remove(rank)  # a bundle whose release fails stays, and is released later


def selectors_of(here: str | None, away_from: Collection[str]) -> list[dict[str, str]] | None:
    """Ray's label selectors for a group's one bundle: on node ``here``, or on none of ``away_from``; None: any node."""
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
