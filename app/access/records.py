"""The file of keys: JSON lines, one record a key. It holds the digests of keys, never a key."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from app.config.errors import RIGHT
from app.config.field_group import NAMESPACE_PATTERN
from engine.errors import ConfigError, UnknownMethodError
from speculators.methods import check_name

TENANT_PATTERN = r"^[A-Za-z0-9._@:+-]{1,128}$"
FORMS = {
    "id": "1 to 64 letters, digits, '.', '_' and '-'",
    "tenant": "1 to 128 letters, digits, '.', '_', '@', ':', '+' and '-'",
    "namespaces": "1 to 128 letters, digits, '.', '_' and '-', no '.' first",
    "feeds": "1 to 128 letters, digits, '.', '_' and '-', no '.' first",
}
KEY_PREFIX = "sk-spectra-"

Namespace = Annotated[str, Field(pattern=NAMESPACE_PATTERN)]
Rate = Annotated[int, Field(ge=1, le=10**12)]


class KeyRecord(BaseModel):
    """What one key may do; a limit that is absent is none."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]  # names the key in logs and to ``spectra keys``
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # of the key, in hexadecimal digits
    tenant: Annotated[str, Field(pattern=TENANT_PATTERN)]
    namespaces: tuple[Namespace, ...] = ()  # whose texts requests may be drafted from, besides the shared ones
    feeds: tuple[Namespace, ...] = ()  # namespaces that may learn from the answers
    max_priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0  # lowest number a request may give: it goes first
    methods: tuple[str, ...] | None = None  # of speculation, that requests may name
    max_nodes: Annotated[int, Field(ge=0, le=4096)] | None = None  # drafted nodes per step
    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None  # of prompts and answers together
    max_concurrent: Rate | None = None  # requests under way at once
    expires: AwareDatetime | None = None
    admin: bool = False  # may read /metrics

    @field_validator("methods")
    @classmethod
    def _methods_exist(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            try:
                check_name(name)
            except UnknownMethodError as error:
                raise ValueError(str(error)) from None
        return value


def parse_records(text: bytes, where: str) -> list[KeyRecord]:
    """The records of a file of keys; empty lines are skipped.

    Args:
        where: the file's name, for errors.

    Raises:
        ConfigError: names line, field and value, and what would be right; a value that may be a key is not shown.
    """
    records: list[KeyRecord] = []
    seen: dict[tuple[str, str], int] = {}  # field and value -> line
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line.strip():
            continue
        place = f"{where}, line {number}"
        record = parse_record(line, place)
        for field, value, shown in (("id", record.id, f"{record.id} "), ("sha256", record.sha256, "")):
            first = seen.setdefault((field, value), number)
            if first != number:
                raise ConfigError(f"{place}: {field} {shown}is that of line {first} too; every key has its own")
        records.append(record)
    return records


def parse_record(line: bytes, place: str) -> KeyRecord:
    """One record; raises ConfigError as `parse_records`, with ``place`` in front."""
    if KEY_PREFIX.encode() in line:
        raise ConfigError(f"{place} holds a key; only its SHA-256 belongs there, and this key is no secret any more")
    try:
        return KeyRecord.model_validate_json(line)
    except ValidationError as error:
        raise ConfigError(f"{place}: {_sentence(error.errors(include_url=False)[0])}") from None


def _sentence(error: ErrorDetails) -> str:
    if not error["loc"]:
        return "it is no JSON object; a line is one object, as `spectra keys new` writes it"
    field, value = ".".join(map(str, error["loc"])), error["input"]
    name = str(error["loc"][0])
    if error["type"] == "missing":
        return f"{name} is missing"
    if error["type"] == "extra_forbidden":
        return f"{name[:64]} is unknown; the fields are {', '.join(KeyRecord.model_fields)}"
    if error["type"] == "value_error":
        return f"{field}: {error.get('ctx', {}).get('error')}"
    right = FORMS.get(name) if error["type"] == "string_pattern_mismatch" else None
    right = right or RIGHT.get(error["type"], "").format(**error.get("ctx", {})) or _otherwise(name, error["msg"])
    return f"{field} is {_shown(name, value)}; it must be {right}"


def _otherwise(name: str, message: str) -> str:
    known = {
        "sha256": "the 64 hexadecimal digits of the key's SHA-256",
        "expires": "a time with its zone, as in 2030-01-31T00:00:00Z",
    }
    return known.get(name) or message.removeprefix("Input should be ")


def _shown(name: str, value: Any) -> str:
    if name == "sha256":  # it may be a key that was put there by mistake
        return "something else"
    text = repr(value)
    return text if len(text) <= 64 else text[:60] + " ..."
