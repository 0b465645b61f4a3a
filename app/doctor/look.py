"""Everything that ``spectra doctor`` checks, in the order of its report."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import fields

from app.doctor.findings import Finding
from app.doctor.machine import folders, gpus
from app.doctor.model import ServingSetup, fit
from app.doctor.network import ports, ray_authentication, store
from app.doctor.numerics import numerics
from app.doctor.software import software
from app.planning.sizes import usable_bytes


def look(given: argparse.Namespace) -> Iterator[Finding]:
    """What is found.

    Args:
        given: flags of ``spectra doctor``.

    Raises:
        ConfigError: a flag is out of range.
    """
    asked = None
    usable_bytes(1.0 if given.gpu_memory_gib is None else given.gpu_memory_gib, given.usable)
    if given.model is not None:
        asked = ServingSetup(**{field.name: getattr(given, field.name) for field in fields(ServingSetup)})
    yield from software()
    yield from gpus()
    yield numerics(given.model, given.dtype, given.quantization)
    yield from folders()
    yield from ports(given.host, given.port)
    yield ray_authentication()
    if given.redis is not None:
        yield store(given.redis, given.namespace)
    if asked is not None:
        yield from fit(asked, given.usable)
