"""Passes named tuples of arrays to compiled functions as one array of addresses.

When Python calls a compiled function, Numba unpacks each array of a tuple. For the 50 arrays of a speculator's model
this takes 11 us, or 60 us after a step of the target model has emptied the caches, far longer than the function itself.
An array of addresses is one argument, and machine code builds the tuple from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

Addresses = npt.NDArray[np.int64]
_T = TypeVar("_T", bound=tuple[Any, ...])


def addresses_of(values: tuple[Any, ...], example: tuple[Any, ...]) -> Addresses:
    """Return the addresses and shapes of a tuple's arrays, tuples inside it included; integers as they are.

    ``values`` must live as long as the addresses are used. Raises TypeError if types, dtypes or dimensions differ from
    those of ``example``, and ValueError if an array is not contiguous.
    """
    return np.array([*_words(values, example)], np.int64)


def _words(value: Any, example: Any) -> Iterator[int]:
    if isinstance(value, tuple) and isinstance(example, tuple) and len(value) == len(example):
        for part, part_example in zip(value, example, strict=True):
            yield from _words(part, part_example)
    elif isinstance(value, np.ndarray) and isinstance(example, np.ndarray):
        if (value.dtype, value.ndim) != (example.dtype, example.ndim):
            wanted = f"{example.dtype} with {example.ndim} dimensions"
            raise TypeError(f"an array of {value.dtype} with {value.ndim} dimensions where {wanted} is expected")
        if not value.flags.c_contiguous:
            raise ValueError("an array is not contiguous; only contiguous arrays can be passed by address")
        yield value.__array_interface__["data"][0]
        yield from value.shape
    elif isinstance(value, int) and isinstance(example, int):
        yield value
    else:
        raise TypeError(f"{type(value).__name__} where {type(example).__name__} is expected")


def opener(example: _T) -> Callable[[Addresses], _T]:
    """Return a function for compiled code that builds a tuple like ``example`` from its addresses.

    ``addresses_of`` must have had the same example: machine code checks nothing.
    """
    made = numba.typeof(example)

    @intrinsic  # type: ignore[untyped-decorator]  # numba has no types
    def opened(typing_context: Any, addresses: Any) -> Any:
        return made(addresses), _generate

    def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = 0

        def word() -> Any:
            nonlocal place
            place += 1
            return builder.load(builder.gep(words, [context.get_constant(types.intp, place - 1)]))

        def make(kind: Any) -> Any:
            if isinstance(kind, types.BaseTuple):
                return context.make_tuple(builder, kind, [make(part) for part in kind])
            if isinstance(kind, types.Array):
                return _array(context, builder, kind, word(), [word() for _ in range(kind.ndim)])
            return word()

        return make(made)

    opening: Callable[[Addresses], _T] = opened
    return opening


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def prefetch(typing_context: Any, array: Any, place: Any) -> Any:
    """For compiled code: start to load the cache line of element ``place`` of a contiguous array, counted flat.

    It never waits, and a place outside the array does no harm.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        line = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [line.type, number, number, number])
        load = builder.module.declare_intrinsic("llvm.prefetch", [line.type], kind)
        builder.call(load, [line, number(0), number(3), number(1)])  # a read, kept in all caches, of data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


def _array(context: Any, builder: Any, kind: Any, address: Any, shape: list[Any]) -> Any:
    """Build a contiguous array that does not own its memory."""
    array = context.make_array(kind)(context, builder)
    size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    strides = [size]
    for n in shape[:0:-1]:
        strides.insert(0, builder.mul(strides[0], n))
    data = builder.inttoptr(address, array.data.type)
    arrayobj.populate_array(array, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
    return array._getvalue()
