"""All exceptions of the retrieval store."""


class StoreError(Exception):
    """Base class of the others."""


class SnapshotError(StoreError):
    """A snapshot cannot be used."""


class DamagedSnapshotError(SnapshotError):
    """Files are missing, truncated or differ from the manifest."""


class ForeignSnapshotError(SnapshotError):
    """The snapshot was built for another tokenizer, or has another format version."""


class UnknownVersionError(StoreError):
    """The store has no such version: it was never published, or it expired."""


class ConflictError(StoreError):
    """Another writer has moved ``current``; nothing was changed."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached now; snapshots fetched earlier stay usable."""


class StoreRightsError(StoreUnavailableError):
    """The store refuses the user a right."""


class StoreAddressError(StoreError):
    """A URL or path cannot be that of a store."""
