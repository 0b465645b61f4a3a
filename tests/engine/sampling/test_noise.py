"""Noise: the same integers on every path, well mixed, with the right distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling import noise
from engine.sampling.draw import DeviceDraw, draw_tokens
from engine.sampling.keys import GUMBEL_DOMAIN, NoiseKey, noise_bits, position_key
from engine.sampling.noise import KeyedRandom, gumbel, gumbel_row, uniforms
from engine.upload import Upload

KEYS = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 200), st.integers(0, 2**31))


def bits_of(key: int, n: int) -> list[int]:
    return [int(noise_bits(np.uint64(key), np.uint64(token))) for token in range(n)]


@given(KEYS, st.integers(1, 600))
def test_compiled_code_and_torch_compute_the_same_integers_and_noise(key: NoiseKey, vocab: int) -> None:
    keys = torch.from_numpy(noise.gumbel_keys([key, key]))
    assert noise._device_bits(keys, vocab)[0].tolist() == bits_of(position_key(key, GUMBEL_DOMAIN), vocab)
    assert torch.equal(noise.gumbel_on_device(keys, vocab)[1], torch.from_numpy(gumbel_row(key, vocab)))


def test_noise_depends_on_key_and_id_only() -> None:
    keys = [(7, 0, 3), (7, 0, 4), (7, 1, 3), (8, 0, 3)]
    batch = gumbel(keys, 1000)
    for key, row in zip(keys, batch, strict=True):
        assert torch.equal(gumbel([key], 1000)[0], row)
        assert torch.equal(gumbel([key], 300)[0], row[:300])
        ids = np.array([0, 17, 999])
        assert gumbel_row(key, 1000, ids).tolist() == row[ids].tolist()
    assert len({row.sum().item() for row in batch}) == len(keys)


def test_noise_never_changes_between_versions() -> None:
    """A seed names a text: these values are part of the interface."""
    assert bits_of(position_key((42, 1, 7), 1), 4) == GOLDEN_BITS
    assert uniforms(42, 1, 7, salt=0, n=2) == pytest.approx(GOLDEN_UNIFORMS, abs=1e-15)


GOLDEN_BITS = [773975973, 732555143, 4027681105, 3559404357]
GOLDEN_UNIFORMS = [0.19742869858379541, 0.5671143568465121]


def test_gumbel_has_the_right_range_moments_and_tails() -> None:
    lowest, highest = -math.log(-math.log(0.5 * 2.0**-32)), -math.log(-math.log1p(-(2.0**-33)))
    assert highest - lowest < noise.GUMBEL_RANGE
    values = gumbel([(1, 0, position) for position in range(64)], 4096).double()
    n = values.numel()
    assert values.mean().item() == pytest.approx(0.5772156649, abs=5 * 1.2825 / n**0.5)
    assert values.var().item() == pytest.approx(math.pi**2 / 6, rel=0.02)
    for bound in (-1.0, 0.0, 3.0, 8.0):
        expected = math.exp(-math.exp(-bound))
        tolerance = 5 * (expected * (1 - expected) / n) ** 0.5
        assert (values <= bound).double().mean().item() == pytest.approx(expected, abs=tolerance)


def test_neighbouring_keys_give_uncorrelated_noise() -> None:
    for axis in range(3):  # seed, choice, position
        keys = [tuple(5 + i if j == axis else 5 for j in range(3)) for i in range(16)]
        correlations = np.corrcoef(gumbel(keys, 20_000).numpy())  # type: ignore[arg-type]
        np.fill_diagonal(correlations, 0.0)
        assert np.abs(correlations).max() < 5 / 20_000**0.5
    key = position_key((3, 0, 0), 1)
    bits = np.array(bits_of(key, 4096), np.uint32)
    for flipped in range(0, 64, 7):
        changed = bits ^ np.array(bits_of(key ^ (1 << flipped), 4096), np.uint32)
        share = np.unpackbits(changed.view(np.uint8).reshape(-1, 4), axis=1).mean(axis=0)
        assert np.abs(share - 0.5).max() < 0.06, f"key bit {flipped} changes half of every output bit"


def test_gumbel_max_draws_from_the_distribution() -> None:
    """Chi-square with 7 degrees of freedom; 24.3 is its 0.1 % point."""
    p = torch.tensor([0.4, 0.3, 0.1, 0.1, 0.05, 0.03, 0.015, 0.005])
    n = 20_000
    scores = p.log().expand(n, -1).contiguous() + 3.0  # a constant per row changes nothing
    tokens = draw_tokens(scores, [(11, 0, position) for position in range(n)])
    counts = np.bincount(tokens, minlength=8)
    assert ((counts - n * p.numpy()) ** 2 / (n * p.numpy())).sum() < 24.3


@given(st.integers(0, 2**32), st.sampled_from([0.1, 1.0, 5.0, 30.0, 300.0]))
def test_ids_that_cannot_win_are_skipped_without_changing_a_draw(seed: int, spread: float) -> None:
    scores = torch.randn(8, 257, generator=torch.Generator().manual_seed(seed)) * spread
    scores[::2] = scores[::2].masked_fill(scores[::2] < scores[::2].quantile(0.9, dim=-1, keepdim=True), float("-inf"))
    keys = [(seed, 0, position) for position in range(8)]
    assert draw_tokens(scores, list(keys)) == (scores + gumbel(keys, 257)).argmax(-1).tolist()


def at_once(scores: torch.Tensor, keys: Sequence[NoiseKey | None]) -> list[int]:
    upload = Upload(scores.device)
    draw = DeviceDraw(keys, upload)
    upload.send()
    tokens: list[int] = draw.apply(scores).tolist()
    return tokens


def test_the_device_draw_equals_the_row_wise_one() -> None:
    scores = torch.randn(6, 500, generator=torch.Generator().manual_seed(0)) * 3.0
    keys: list[NoiseKey | None] = [None if i % 3 == 0 else (1, 0, i) for i in range(6)]
    assert at_once(scores, keys) == draw_tokens(scores, keys)
    assert at_once(scores, [None] * 6) == scores.argmax(-1).tolist()
    assert draw_tokens(torch.tensor([[0.0, 2.0, 2.0], [5.0, 5.0, 1.0]]), [None, None]) == [1, 0], "the lowest id"
    assert at_once(scores, [(1, 0, 4)] * 6) == draw_tokens(scores, [(1, 0, 4)] * 6), "rows of one key share its noise"


def test_uniforms_are_uniform_and_streams_differ() -> None:
    values = np.array([uniforms(1, 0, position, salt=0, n=20) for position in range(1000)]).ravel()
    counts, _ = np.histogram(values, bins=20, range=(0.0, 1.0))
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # 19 degrees of freedom, 0.1 % point
    assert uniforms(1, 0, 0, salt=0, n=3)[:2] == uniforms(1, 0, 0, salt=0, n=2)
    assert len({uniforms(*key, n=1)[0] for key in [(1, 0, 0, 0), (1, 0, 0, 1), (1, 0, 1, 0), (1, 1, 0, 0)]}) == 4


def test_keyed_random_draws_in_proportion_and_never_the_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    for position in range(200):
        random = KeyedRandom((9, 0, position))
        assert random.accept(1.0)
        assert not random.accept(0.0)
        assert random.draw(np.array([0.0, 0.0, 1e-300, 0.0])) == 2
    weights = np.array([3.0, 0.0, 1.0, 6.0])
    counts = np.bincount([KeyedRandom((4, 0, i)).draw(weights) for i in range(10_000)], minlength=4)
    expected = weights[[0, 2, 3]] * 1000
    assert counts[1] == 0
    assert ((counts[[0, 2, 3]] - expected) ** 2 / expected).sum() < 13.8  # 2 degrees of freedom
    monkeypatch.setattr(random, "_next", lambda: 1.0)
    assert random.draw(np.array([0.5, 0.5, 0.0])) == 1, "the last possible id at the rounding edge"
