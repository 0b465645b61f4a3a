"""All kept answers: finds them, counts them and their bytes, and knows which ones may make room for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from deployments.answers.entry import AnswerEntry
from deployments.options import AnswerLimits

ABANDONED_S = 5.0  # a stream without a reader for less time may just have been created, or be reconnecting


class AnswerCollection:
    """Answers by id and by tenant.

    Args:
        limits: of the answers.
        clock: seconds since 1970.
        drop: deletes an answer.
    """

    def __init__(self, limits: AnswerLimits, clock: Callable[[], float], drop: Callable[[AnswerEntry], None]) -> None:
        self.by_id: dict[str, AnswerEntry] = {}
        self.n_bytes = 0
        self.n_abandoned = 0  # streams that were ended because they had no reader
        self._limits = limits
        self._clock = clock
        self._drop = drop
        self._by_tenant: dict[str, dict[str, AnswerEntry]] = {}
        self._bytes: Counter[str] = Counter()  # by tenant

    def add(self, entry: AnswerEntry) -> None:
        self.by_id[entry.id] = self._by_tenant.setdefault(entry.tenant, {})[entry.id] = entry
        self._count(entry.tenant, entry.n_bytes)

    def remove(self, entry: AnswerEntry) -> None:
        del self.by_id[entry.id], self._by_tenant[entry.tenant][entry.id]
        self._count(entry.tenant, -entry.n_bytes)
        if not self._by_tenant[entry.tenant]:
            del self._by_tenant[entry.tenant], self._bytes[entry.tenant]

    def grow(self, entry: AnswerEntry, n_bytes: int) -> None:
        """Count new bytes of an answer."""
        entry.n_bytes += n_bytes
        self._count(entry.tenant, n_bytes)

    def find(self, id_: str, tenant: str) -> AnswerEntry | None:
        """The answer; None: ``tenant`` has none with this id."""
        entry = self.by_id.get(id_)
        return None if entry is None or entry.tenant != tenant else entry

    def list_abandoned(self, now: float) -> list[AnswerEntry]:
        """Unfinished streams without a reader, of all tenants, the longest abandoned first."""
        found = [
            one
            for one in self.by_id.values()
            if one.end is None and not one.is_background and not one.n_readers and now - one.unread_since >= ABANDONED_S
        ]
        return sorted(found, key=lambda one: one.unread_since)

    def make_room(self, entry: AnswerEntry, n_answers: int, n_bytes: int) -> str:
        """Drop streams of the entry's tenant if that makes room; returns which limit is exceeded still, or ""."""
        victims, freed = list[AnswerEntry](), 0
        problem = self._find_excess(entry.tenant, n_answers, n_bytes)
        for other in self._list_droppable(entry.tenant) if problem else ():
            if problem and other is not entry:
                victims.append(other)
                freed += other.n_bytes
                problem = self._find_excess(entry.tenant, n_answers - len(victims), n_bytes - freed)
        for other in victims if not problem else ():
            self.n_abandoned += other.end is None
            self._drop(other)
        return problem

    def _find_excess(self, tenant: str, n_answers: int, n_bytes: int) -> str:
        """Which limit ``n_answers`` and ``n_bytes`` more would exceed; "": none."""
        limits, kept, held = self._limits, len(self._by_tenant.get(tenant, ())), self._bytes[tenant]
        if kept + n_answers > limits.per_tenant:
            return f"{kept} answers are kept already, of at most {limits.per_tenant} per tenant"
        if held + n_bytes > limits.bytes_per_tenant:
            return f"the kept answers have {held} bytes already, of at most {limits.bytes_per_tenant} per tenant"
        if self.n_bytes + n_bytes > limits.total_bytes:
            return f"the kept answers of all tenants have {self.n_bytes} bytes, of at most {limits.total_bytes}"
        return ""

    def _list_droppable(self, tenant: str) -> list[AnswerEntry]:
        """A tenant's streams without readers: finished ones, the oldest first, then the abandoned ones."""
        streams = [
            one for one in self._by_tenant.get(tenant, {}).values() if not one.is_background and not one.n_readers
        ]
        finished = sorted((one.end.at, one.id, one) for one in streams if one.end is not None)
        abandoned = [one for one in self.list_abandoned(self._clock()) if one.tenant == tenant]
        return [one for *_, one in finished] + abandoned

    def _count(self, tenant: str, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        self._bytes[tenant] += n_bytes
