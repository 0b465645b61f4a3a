"""Options of a target model, and checks of its split that read no weights."""

from __future__ import annotations

from dataclasses import dataclass

from engine.drafter.settings import DrafterSettings
from engine.errors import ConfigError
from engine.request import DEFAULT_NODES
from engine.simulated.profile import Simulation

GIB = 1 << 30
ANY = 1 << 60  # bytes: no limit
CPU_CACHE = GIB // 2  # bytes of KV cache on a CPU where no number is named
STEP_ROWS = 2048  # of the largest step: what a scheduler composes at most by default
NUMERICS = AUTO, EXACT, FAST, LAYERS = "auto", "exact", "fast", "layers"
EVEN, MEASURED = "even", "measured"  # splits, like ``AUTO``


_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # of the dtypes that a name may select


def dtype_name(name: str | None, stored: str, device: str) -> str:
    """Return the dtype of activations by torch's name; without a name float32 on a CPU, else the checkpoint's.

    Raises:
        ConfigError: ``name`` is not supported.
    """
    if name is None:
        return "float32" if device == "cpu" else stored
    if name not in _ITEM_BYTES:
        raise ConfigError(f"dtype is {name!r}; it must be one of {', '.join(_ITEM_BYTES)}")
    return name


def item_bytes(dtype: str) -> int:
    """Return the bytes of a number of a dtype by torch's name, which may be a checkpoint's ``float64``."""
    return _ITEM_BYTES.get(dtype, 8)


def is_cuda(device: str) -> bool:
    """Whether a device as in ``TargetOptions`` is a GPU."""
    return device.partition(":")[0] == "cuda"


def default_nodes(device: str) -> int:
    """Return the drafted nodes of a step on a device as in ``TargetOptions``, for requests that name no number.

    A GPU multiplies tiles of 64 rows, and the root takes one of them.
    """
    return DEFAULT_NODES - 1 if is_cuda(device) else DEFAULT_NODES


@dataclass(frozen=True, slots=True)
class Resolution:
    """The numerics that a process runs, and why; ``str`` is the phrase for a log.

    Args:
        numerics: ``EXACT`` or ``FAST``, both by an executor of ``engine.cuda``, or ``LAYERS``.
        obstacle: why they are not the numerics that come first in this order; "": nothing is in their way.
        row_tile: rows that exact products multiply at once; None: by the number of rows.
        seconds: that the self-test took; 0: there was none.
    """

    numerics: str
    obstacle: str = ""
    row_tile: int | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        """As in ``exact (self-test passed in 1.9 s)`` or ``fast, because ..``."""
        name = "Hugging Face's layers, which are slow" if self.numerics == LAYERS else self.numerics
        if self.obstacle:
            return f"{name}, because {self.obstacle}"
        tile = "" if self.row_tile is None else f"; products take {self.row_tile} rows at once, whatever the step"
        return f"{name} (self-test passed in {self.seconds:.1f} s{tile})"


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Model, precision, devices and stages of a target."""

    model: str  # directory or hub id
    stages: int = 1
    dtype: str | None = None  # None: float32 on a CPU, the checkpoint's on a GPU
    device: str = "cpu"
    kv_bytes: int | None = GIB  # over all processes; None: what the devices have left (``memory.with_cache``)
    block_size: int = 64  # tokens
    step_rows: int = STEP_ROWS  # of the largest step, for which a GPU keeps memory where kv_bytes is None
    beside: int = 0  # bytes that others will take of the device in this process, where kv_bytes is None
    max_model_len: int | None = None  # tokens; None: the model's, or what the cache holds
    quantization: str | None = None  # the decoder layers' matrices: "int8" (on a CPU bitsandbytes') or "fp8"
    split: str = "auto"  # auto, even, measured, or a layer count for every stage: "22,20,20,18"
    stage_memory: tuple[int, ...] = ()  # bytes of a process, per stage or one number for all; none: no limit
    cost_folder: str = ""  # in the cache, where split "measured" keeps what it measured; "": nowhere
    simulation: Simulation | None = None  # stages sleep instead of computing; ``model`` gives the vocabulary
    drafter: DrafterSettings | None = None  # trained for the model; on the last stage
    numerics: str = AUTO  # on cuda; ``Resolution`` says what it is there
    resolution: Resolution | None = None  # of ``numerics``, in the process that runs them (``numerics.with_numerics``)
    revision: str | None = None  # branch, tag or commit of ``model`` on the hub; None: the main branch
    tensor_parallel: int = 1  # ranks of a stage, each a process with its own device

    @property
    def has_executor(self) -> bool:
        """Whether executors run the layers; a GPU whose numerics are not resolved yet is assumed to have them."""
        if self.resolution is None:
            return is_cuda(self.device)
        return self.resolution.numerics != LAYERS


def check_split(split: str, n_layers: int, n_stages: int) -> None:
    """Raise ConfigError if a split is unknown or does not fit the model."""
    if not 1 <= n_stages <= n_layers:
        raise ConfigError(f"stages is {n_stages}; it must be 1 to {n_layers}, the model's number of layers")
    if split in (AUTO, EVEN, MEASURED):
        return
    counts = layer_counts(split)
    if len(counts) != n_stages or sum(counts) != n_layers:
        raise ConfigError(
            f"layer_split is {split}: {len(counts)} stages with {sum(counts)} layers; it must give each of the "
            f"{n_stages} stages its share of the model's {n_layers} layers"
        )


def layer_counts(split: str) -> tuple[int, ...]:
    """Parse a split of counts: ``"22,20"`` -> (22, 20).

    Raises:
        ConfigError: ``split`` is not a list of counts of at least 1.
    """
    try:
        counts = tuple(int(part) for part in split.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise ConfigError(
            f"layer_split is {split!r}; it must be {AUTO}, {EVEN}, {MEASURED}, or a layer count of at least 1 for "
            f"every stage, as in 22,20,20,18"
        )
    return counts


def check_memory(memory: tuple[int, ...], n_stages: int) -> tuple[int, ...] | None:
    """Return a limit in bytes for every stage; None if memory is not limited.

    Raises:
        ConfigError: ``memory`` has neither one number nor one per stage, or a number is not above 0.
    """
    if not memory:
        return None
    if len(memory) not in (1, n_stages) or min(memory) <= 0:
        given = ",".join(f"{one / (1 << 30):g}" for one in memory)
        raise ConfigError(
            f"stage_memory_gib is {given}; it must be one number above 0, or one for each of the {n_stages} stages"
        )
    return memory * n_stages if len(memory) == 1 else memory
