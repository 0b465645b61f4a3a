"""Triton's interpreter without a third of its work: it would search the whole language at every launch and call."""

from __future__ import annotations

from types import SimpleNamespace

import triton.language as tl
from triton.runtime import interpreter


def quicken() -> None:
    """Replace the functions of the language once, for as long as this process lives; it can compile no kernel then."""
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()
