"""Triton's interpreter without a third of its work, in tests of kernels, which take most of their time in it.

As it comes it looks through the whole language, for functions to replace, at every launch and at every call of a
function inside a kernel.
"""

from __future__ import annotations

from types import SimpleNamespace

import triton.language as tl
from triton.runtime import interpreter


def quicken() -> None:
    """Replace the functions of the language once, for as long as this process lives; it can compile no kernel then."""
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()
