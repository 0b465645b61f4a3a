"""The checked flags of ``spectra corpus build``; an error names the flag, its value and the right values."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError
from retrieval_store.refine.selection import Budget

PIECE = 1024  # tokens
SHORTEST = 8  # tokens
SELECTIONS = ("cover", "likely")
CPU_BATCH, GPU_BATCH = 2048, 16384  # tokens: fits a core's cache; keeps a GPU busy


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """All flags, checked.

    Raises:
        ConfigError: a value is out of range, or two contradict each other.
    """

    model: str
    inputs: tuple[Path, ...]
    out: Path
    keep: int | None
    keep_tokens: int | None = None
    is_forced: bool = False
    is_refined: bool = True
    select: str | None = None  # of SELECTIONS; None: cover, or a sample where nothing is scored
    is_per_input: bool = False
    seed: int = 0
    piece_tokens: int | None = None  # None: PIECE, or what the model reads if that is less
    min_tokens: int = SHORTEST
    work: Path | None = None  # None: beside ``out``, and removed at the end
    batch_tokens: int | None = None
    dtype: str | None = None
    device: str = "cpu"  # or several, separated by commas
    threads: int | None = None  # None: torch's default
    redis: str | None = None
    namespace: str | None = None

    def __post_init__(self) -> None:
        checks = {
            "--keep": (self.keep is None or self.keep >= 1, self.keep, "at least 1"),
            "--keep-tokens": (self.keep_tokens is None or self.keep_tokens >= 1, self.keep_tokens, "at least 1"),
            "--piece-tokens": (
                self.piece_tokens is None or self.piece_tokens >= self.min_tokens,
                self.piece_tokens,
                f"at least --min-tokens ({self.min_tokens})",
            ),
            "--min-tokens": (self.min_tokens >= 2, self.min_tokens, "at least 2"),
            "--batch-tokens": (self.batch_tokens is None or self.batch_tokens >= 1, self.batch_tokens, "at least 1"),
            "--threads": (self.threads is None or self.threads >= 1, self.threads, "at least 1"),
            "--select": (self.select in (None, *SELECTIONS), self.select, " or ".join(SELECTIONS)),
            "--seed": (self.seed >= 0, self.seed, "0 or more"),
            "--device": (all(_is_device(one) for one in self.devices), self.device, "cpu, cuda, cuda:N or auto"),
        }
        for flag, (is_right, value, right) in checks.items():
            if not is_right:
                raise ConfigError(f"{flag} is {value}; it must be {right}")
        if self.keep is None and self.keep_tokens is None:
            raise ConfigError("--keep N or --keep-tokens T is needed: the part of the corpus to keep")
        if self.select == "likely" and not self.is_refined:
            raise ConfigError("--select likely needs scores; leave --unrefined out")
        if self.namespace is not None and self.redis is None:
            raise ConfigError(f"--namespace {self.namespace}: give --redis URL too, the store to publish to")
        self._check_paths()

    def _check_paths(self) -> None:
        for path in self.inputs:
            if not path.exists():
                raise ConfigError(f"--input {path}: no such file or folder")
        if self.out.exists() and not self.is_forced:
            raise ConfigError(f"--out {self.out} exists; --force replaces it")
        if self.out.exists() and not (self.out / "manifest.json").is_file():
            raise ConfigError(f"--out {self.out} exists and is no snapshot: --force does not replace that")

    @property
    def is_covering(self) -> bool:
        """Whether texts are chosen by what they cover."""
        return self.select == "cover" or (self.select is None and self.is_refined)

    @property
    def devices(self) -> list[str]:
        """Devices of the layers, in order."""
        return self.device.split(",")

    @property
    def budget(self) -> Budget:
        """Limits of the kept texts and tokens."""
        return Budget(self.keep, self.keep_tokens)

    @property
    def batch(self) -> int:
        """Tokens scored together."""
        return self.batch_tokens or (CPU_BATCH if self.devices[0] == "cpu" else GPU_BATCH)

    @property
    def report(self) -> Path:
        """Folder of the report, beside the snapshot, which holds only the files of its manifest."""
        return self.out.with_name(self.out.name + ".report")

    @property
    def work_folder(self) -> Path:
        """Folder of texts and scores until the snapshot is written."""
        return self.work or self.out.with_name(self.out.name + ".work")


def _is_device(name: str) -> bool:
    kind, _, number = name.partition(":")
    return name == "cpu" or (kind == "cuda" and (number.isdecimal() or name == "cuda"))


def settings_from(arguments: argparse.Namespace) -> BuildSettings:
    """The settings that the flags ask for.

    Raises:
        ConfigError: a value is wrong.
    """
    return BuildSettings(
        model=arguments.model,
        inputs=tuple(Path(path).expanduser() for path in arguments.input),
        out=Path(arguments.out).expanduser().absolute(),
        keep=arguments.keep,
        keep_tokens=arguments.keep_tokens,
        is_forced=arguments.force,
        is_refined=not arguments.unrefined,
        select=arguments.select,
        is_per_input=arguments.per_input,
        seed=arguments.seed,
        piece_tokens=arguments.piece_tokens,
        min_tokens=arguments.min_tokens,
        work=None if arguments.work is None else Path(arguments.work).expanduser().absolute(),
        batch_tokens=arguments.batch_tokens,
        dtype=arguments.dtype,
        device=arguments.device,
        threads=arguments.threads,
        redis=arguments.redis,
        namespace=arguments.namespace,
    )
