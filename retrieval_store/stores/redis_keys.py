"""Names of a namespace's keys in Redis. They share a hash tag, so that scripts and a Cluster find them on one node."""

from __future__ import annotations

from dataclasses import dataclass

from retrieval_store.stores.names import segment

PREFIX = "spectra"
MANIFEST_FIELD = "manifest"  # of a version's or an upload's hash; files are FILE_FIELD


@dataclass(frozen=True, slots=True)
class RedisKeys:
    """``spectra:{NAMESPACE}:...``."""

    namespace: str

    @property
    def _base(self) -> str:
        return f"{PREFIX}:{{{segment(self.namespace)}}}"

    @property
    def current(self) -> str:
        """Hash: version, revision, before (versions that rollbacks go through), move (id of the last one)."""
        return f"{self._base}:current"

    @property
    def versions(self) -> str:
        """Sorted set: versions in order of publication; what expired is dropped when somebody looks."""
        return f"{self._base}:versions"

    @property
    def history(self) -> str:
        """List: moves of current."""
        return f"{self._base}:history"

    @property
    def log(self) -> str:
        """Stream: live texts."""
        return f"{self._base}:log"

    @property
    def hints(self) -> str:
        """Channel: something changed."""
        return f"{self._base}:hints"

    def version(self, version: str) -> str:
        """Hash: a whole snapshot in one key, so that it expires, or moves here from an upload, at once."""
        return f"{self._base}:version:{version}"

    def upload(self, name: str) -> str:
        """Hash like a version's, with a time to live from the beginning."""
        return f"{self._base}:upload:{name}"


def chunk_field(file: str, number: int) -> str:
    """Field of one piece of a file."""
    return f"file:{file}:{number}"
