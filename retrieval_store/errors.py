"""Every exception of the retrieval store, in one place. ``StoreError`` is the root."""


class StoreError(Exception):
    """Root of the hierarchy."""


class SnapshotError(StoreError):
    """A snapshot cannot be used; the message names it and says why."""


class DamagedSnapshotError(SnapshotError):
    """Files are missing, truncated or not what the manifest says."""


class ForeignSnapshotError(SnapshotError):
    """Made for another tokenizer, or written in another format version."""


class UnknownVersionError(StoreError):
    """The store has no such version: it never had it, or it expired."""


class ConflictError(StoreError):
    """Another writer moved ``current`` meanwhile; nothing was changed."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached now; what was fetched before stays usable."""


class StoreAddressError(StoreError):
    """No store can be at such a URL or path; the message says what would be right."""
