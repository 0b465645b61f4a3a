"""Which bundle the next process of a pipeline goes to: one that is free, and not on a draining node."""

from __future__ import annotations

from collections.abc import Callable, Collection

from deployments.target_model.bundles import Bundle, Bundles


class Places:
    """The bundles of a pipeline that no process uses.

    Args:
        bundles: of the pipeline.
        stage_nodes: nodes that have a stage now: bundles are reserved on others if possible.
    """

    def __init__(self, bundles: Bundles, stage_nodes: Callable[[], Collection[str]]) -> None:
        self.draining: frozenset[str] = frozenset()  # nodes
        self.vacant: list[Bundle] = []
        self._bundles = bundles
        self._stage_nodes = stage_nodes
        self._nodes: dict[Bundle, str] = {}  # of vacant bundles, at the last look

    @property
    def is_leaving(self) -> bool:
        """Whether the node of the pipeline's owner drains."""
        return self._bundles.here in self.draining

    async def look(self) -> None:
        """Find out which nodes drain, and on which nodes vacant bundles are."""
        self.draining = await self._bundles.draining()
        self._nodes = await self._bundles.nodes(self.vacant) if self.vacant else {}

    def vacate(self, bundle: Bundle) -> None:
        """A bundle has no process any more, or will have none soon."""
        self.vacant.append(bundle)

    async def choose(self) -> Bundle:
        """Where the next process shall start: in a bundle that is there, or else in one that will be.

        The replica's own go first, because they cannot be given back. One that has lost its node gets another before a
        reserved one would.
        """
        there = [bundle for bundle, node in self._nodes.items() if node and node not in self.draining]
        coming = [bundle for bundle, node in self._nodes.items() if not node and bundle.is_own]
        for bundle in (*sorted(there, key=lambda one: not one.is_own), *coming):
            if bundle in self.vacant:
                return self.occupy(bundle)
        return await self._bundles.reserve(self._stage_nodes())

    def occupy(self, bundle: Bundle) -> Bundle:
        """A process starts in a vacant bundle."""
        self.vacant.remove(bundle)
        return bundle

    def own_there(self) -> list[Bundle]:
        """Vacant bundles of the replica's own that could be used now."""
        found = self._nodes.items()
        return [one for one, node in found if one.is_own and one in self.vacant and node and node not in self.draining]

    async def tidy(self) -> None:
        """Give back what was reserved and is vacant."""
        for bundle in [bundle for bundle in self.vacant if not bundle.is_own]:
            await self._bundles.release(bundle)
            self.vacant.remove(bundle)  # now: should that fail, it is given back later
