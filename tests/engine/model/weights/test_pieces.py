"""Pieces hold every wanted byte once, in the order of the disk, whatever is wanted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.model.weights.pieces import MOST_PARTS, Extent, Part, Piece, cut


@st.composite
def wanted(draw: st.DrawFn) -> list[Extent]:
    """Extents of a few files, with and without gaps, in any order."""
    made: list[Extent] = []
    for file in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, 20))
        for _ in range(draw(st.integers(0, 12))):
            unit = draw(st.integers(1, 9))
            n_bytes = unit * draw(st.integers(1, 40))
            made.append(Extent(file, at, n_bytes, unit))
            at += n_bytes + draw(st.sampled_from([0, 0, 0, 1, 100]))
    return draw(st.permutations(made))


@given(wanted(), st.integers(1, 200))
def test_every_byte_is_in_one_piece_and_pieces_are_in_the_order_of_the_files(
    extents: list[Extent], largest: int
) -> None:
    pieces = cut(extents, largest)
    found: dict[int, list[Part]] = {i: [] for i in range(len(extents))}
    for piece in pieces:
        at = piece.first
        for part in piece.parts:
            extent = extents[part.extent]
            assert (piece.file, at) == (extent.file, extent.first + part.first)  # parts lie one behind the other
            assert part.first % extent.unit == part.n_bytes % extent.unit == 0
            found[part.extent].append(part)
            at += part.n_bytes
        assert piece.n_bytes <= max([largest, *(extents[part.extent].unit for part in piece.parts)])
    for i, parts in found.items():
        covered = [byte for part in parts for byte in range(part.first, part.first + part.n_bytes)]
        assert covered == [*range(extents[i].n_bytes)]  # once each, and a tensor from its beginning on
    order = [(piece.file, piece.first) for piece in pieces]
    assert order == sorted(order)


def test_small_tensors_that_lie_together_are_one_read_and_large_ones_several() -> None:
    extents = [Extent(0, 100, 4, 2), Extent(0, 104, 6, 2), Extent(0, 110, 25, 5)]
    assert cut(extents, 20) == [
        Piece(0, 100, (Part(0, 0, 4), Part(1, 0, 6), Part(2, 0, 10))),
        Piece(0, 120, (Part(2, 10, 15),)),
    ]
    assert [piece.n_bytes for piece in cut([Extent(0, 0, 90, 30)], 20)] == [30, 30, 30]  # a row is not torn apart


def test_the_kernel_takes_all_parts_of_a_piece_at_once() -> None:
    pieces = cut([Extent(0, i, 1, 1) for i in range(3 * MOST_PARTS)], 1 << 20)
    assert [len(piece.parts) for piece in pieces] == [MOST_PARTS] * 3
