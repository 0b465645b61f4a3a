"""Messages between the retrieval service and its readers: which snapshots of a namespace to hold, and its status."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

NAMESPACE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
"""Names a namespace may have: 1 to 128 letters, digits, '.', '_' and '-', no '.' first."""

CHUNK = 1 << 20  # bytes of a snapshot's file in one message


class OfferedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot that readers should hold."""

    version: str
    folder: str  # on the service's node
    tokens: int


class NamespaceOffer(msgspec.Struct, frozen=True):
    """The snapshots of a namespace that readers should hold now."""

    base: OfferedSnapshot | None = None  # None: there is none yet; a reader keeps the one it holds
    delta: OfferedSnapshot | None = None  # live texts that are not in the base; None: there are none

    @property
    def versions(self) -> tuple[str, str]:
        """Versions of base and delta; "" for none."""
        return (self.base.version if self.base else "", self.delta.version if self.delta else "")


class NamespaceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a namespace."""

    version: str = ""  # of the base; "": none
    delta: str = ""  # version of the delta; "": none
    tokens: int = 0  # of both
    staleness: float = 0.0  # seconds since the store confirmed that this base is current
    problem: str = ""  # why the base may not be the store's current snapshot; "": it is
    learning_problem: str = ""  # why learning fails; "": it does not


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the service; counts since it started."""

    namespaces: dict[str, NamespaceStatus] = {}
    refused: int = 0  # snapshots: damaged, foreign, gone or too large for the disk
    live_texts: int = 0  # appended to the store's log
    live_dropped: int = 0  # lost, because the store was away or too many came
    folds: int = 0  # deltas written
    compactions: int = 0  # snapshots of live texts published


Known: TypeAlias = Mapping[str, tuple[str, str]]
"""Namespace -> versions of base and delta that a reader holds; a reader asks for the namespaces it names here."""


class ManifestChanges(msgspec.Struct, frozen=True):
    """What differs from what a reader knew, and the service's status."""

    offers: dict[str, NamespaceOffer]
    status: Status
    empty: tuple[str, ...] = ()  # requested namespaces that have no text


class ManifestSource(Protocol):
    """The service as a reader sees it. Any call may raise any exception when the service is away."""

    def changes(self, known: Known, timeout: float) -> ManifestChanges:
        """Return the offers that differ from ``known``; wait up to ``timeout`` seconds for one."""

    def read(self, namespace: str, version: str, file: str, offset: int) -> bytes:
        """Return at most ``CHUNK`` bytes of a file of an offered snapshot; none at its end."""

    def learn(self, namespace: str, texts: Sequence[Sequence[int]]) -> int:
        """Send outputs of a namespace that learns; return how many were refused."""


def is_namespace(name: str) -> bool:
    return NAMESPACE.fullmatch(name) is not None
