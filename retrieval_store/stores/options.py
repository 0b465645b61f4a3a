"""What a user may set about a store; the same for all kinds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Settings of a store.

    Raises:
        ValueError: a value is out of range.
    """

    grace_seconds: float = 3600.0  # how long a superseded version stays
    upload_seconds: float = 600.0  # how long what an interrupted upload left stays
    chunk_bytes: int = 4 << 20  # of one value in Redis
    connect_seconds: float = 2.0
    read_seconds: float = 5.0  # without a byte from the store
    ca_file: str = ""  # PEM; "": the system's authorities; a URL's ?ca= wins
    tokenizer_hash: str = ""  # snapshots of other tokenizers are refused; "": any

    def __post_init__(self) -> None:
        for name in ("upload_seconds", "connect_seconds", "read_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} {getattr(self, name)} must be above 0")
        if self.grace_seconds < 0:
            raise ValueError(f"grace_seconds {self.grace_seconds} must be at least 0")
        if not 1 <= self.chunk_bytes <= 256 << 20:
            raise ValueError(f"chunk_bytes {self.chunk_bytes} must be within 1 and {256 << 20}: Redis takes no more")
