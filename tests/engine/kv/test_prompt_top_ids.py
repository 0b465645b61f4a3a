"""What is read back behind a prompt, however it came in chunks: the same rows as of one array."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.prompt_top_ids import PromptTopIds
from engine.protocol import Needs


@given(st.lists(st.integers(1, 5), max_size=6), st.booleans(), st.integers(0, 20), st.integers(0, 20))
def test_a_part_is_cut_from_all_chunks_as_from_one(
    sizes: list[int], with_logprobs: bool, first: int, last: int
) -> None:
    kept = PromptTopIds()
    whole = np.arange(2 * sum(sizes), dtype=np.int32).reshape(-1, 2)
    place = 0
    for size in sizes:
        chunk = whole[place : place + size]
        kept.append(chunk, chunk / np.float32(3) if with_logprobs else None)
        place += size
    ids, logprobs = kept.part(first, last)
    if not sizes:
        assert ids is None
        assert logprobs is None
        return
    assert ids is not None
    assert ids.tolist() == whole[first:last].tolist()
    assert (logprobs is None) != with_logprobs
    assert logprobs is None or logprobs.tolist() == (whole[first:last] / np.float32(3)).tolist()
    copied = kept.copy(kept.n, Needs(prompt_top_k=1, top_logprobs=with_logprobs))
    assert copied.part(0, kept.n)[0].tolist() == whole[:, :1].tolist()  # type: ignore[union-attr]


def test_one_chunk_is_handed_out_as_it_came() -> None:
    """A prompt of n chunks costs n rows of copies, not n times n."""
    kept = PromptTopIds()
    chunks = [np.full((3, 2), i, np.int32) for i in range(4)]
    for chunk in chunks:
        kept.append(chunk, None)
    told = kept.part(6, 9)[0]
    assert told is not None
    assert np.shares_memory(told, chunks[2])
