"""Links between neighbouring stages: tensors arrive unchanged and in order."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import torch
from torch import Tensor

from deployments.pipeline.tensor_header import TensorHeader
from tests.support.link_peers import KINDS, LARGE, Peers, deliver, received, same
from tests.support.waiting import LIMIT_S


@pytest.mark.parametrize(
    ("kind", "peers"), [("socket", "unix"), ("socket", "tcp6"), ("gloo", "unix"), ("gloo", "tcp")], indirect=["peers"]
)
def test_tensors_of_every_dtype_and_size_arrive_unchanged(kind: str, peers: Peers) -> None:
    sender, receiver = peers.links(KINDS[kind])
    assert (sender.kind, receiver.kind) == (kind, kind)
    frames: list[list[Tensor]] = [
        *([torch.randn(1, 7, 33).to(dtype)] for dtype in (torch.float32, torch.bfloat16, torch.float16)),
        [],
        [torch.empty(1, 0, 32), torch.randn(1, 3, 32, dtype=torch.float16)],
        [torch.empty(0, dtype=torch.bfloat16)],
        [torch.randn(1, 6, 64).transpose(1, 2), torch.randn(2, 8)[:, ::2]],  # not contiguous
        [torch.randn(LARGE // 4), torch.randn(5)],
        [torch.full((1, 1, 1), float("nan")).view(torch.float32).nan_to_num(3.0)],
    ]
    for tensors in frames:
        deliver(sender, tensors)
    for tensors in frames:
        assert same(received(receiver), tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sender_does_not_wait_for_a_neighbour_that_computes(kind: str, peers: Peers) -> None:
    sender, receiver = peers.links(KINDS[kind])
    frames = [[torch.full((LARGE // 4,), float(i)), torch.full((3,), float(i))] for i in range(4)]
    for tensors in frames:  # no thread reads yet: a send that waited would wait for ever
        deliver(sender, tensors)
    assert all(same(received(receiver), tensors) for tensors in frames)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_sent_in_order_once_their_computation_is_done(kind: str, peers: Peers) -> None:
    sender, receiver = peers.links(KINDS[kind])
    over, arrived = threading.Event(), threading.Event()
    late, small = torch.zeros(1000), torch.arange(3.0)
    header = bytearray(msgspec.msgpack.encode([TensorHeader.of(late)]))
    seen: list[list[Tensor]] = []

    def ready() -> None:
        assert over.wait(LIMIT_S)
        late.fill_(7.0)

    def read() -> None:
        seen.extend(received(receiver) for _ in range(3))
        arrived.set()

    deliver(sender, [small])
    sender.send(header, [late], ready)
    deliver(sender, [small + 1])  # computed already, and sent after it nevertheless
    reader = threading.Thread(target=read)
    reader.start()
    assert not arrived.wait(0.05)
    over.set()
    assert arrived.wait(LIMIT_S)
    reader.join()
    assert [tensors[0][0].item() for tensors in seen] == [0.0, 7.0, 1.0]
    assert same(seen[1], [torch.full((1000,), 7.0)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_computation_or_a_closed_neighbour_ends_its_link_only(kind: str, peers: Peers) -> None:
    sender, receiver = peers.links(KINDS[kind])
    sender.send(bytearray(b"never"), [torch.zeros(3)], lambda: [1 // 0][0] and None)
    with pytest.raises((EOFError, OSError)):
        receiver.header()
    with pytest.raises(EOFError, match="could not be sent"):
        deliver(sender, [torch.zeros(8 << 20)])
    closed, waiting = peers.links(KINDS[kind])
    with ThreadPoolExecutor() as threads:
        tensors = threads.submit(received, waiting)
        closed.close()
        assert isinstance(tensors.exception(LIMIT_S), EOFError | OSError)
    again, fresh = peers.links(KINDS[kind])  # this process can build another link
    deliver(again, [torch.ones(3)])
    assert same(received(fresh), [torch.ones(3)])
