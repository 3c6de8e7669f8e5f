"""Frames arrive whole, large ones through shared memory; a peer that lies ends its connection and nothing more."""

from __future__ import annotations

import array
import fcntl
import gc
import mmap
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_dataplane.execution.channel import (
    HEADER,
    MAX_IDS,
    Channel,
    Frame,
    QueuedChannel,
    WireError,
    channel_pair,
    receive_all,
)
from shoal_dataplane.execution.shm import INLINE_LIMIT, SegmentError, SegmentPool, SegmentTable
from tests.unit.execution.worker_models import open_descriptors, wait_for


class Side(NamedTuple):
    """One end of a connection."""

    channel: Channel
    pool: SegmentPool
    table: SegmentTable


def side(sock: socket.socket, limit: int = 1 << 30) -> Side:
    pool, table = SegmentPool(limit), SegmentTable(writable=True)
    return Side(Channel(sock, pool, table, writable=True), pool, table)


@pytest.fixture
def pair() -> Iterator[tuple[Side, Side]]:
    ours, theirs = map(side, channel_pair())
    yield ours, theirs
    for end in (ours, theirs):
        end.channel.close()
        end.pool.close()
        end.table.close()


def send(sender: Side, receiver: Side, head: bytes, payload: bytes) -> Frame:
    """One frame, there."""
    sending = threading.Thread(target=lambda: sender.channel.send(2, head, [payload], len(payload)))
    sending.start()
    (frame,) = receiver.channel.receive()
    sending.join()
    return frame


@pytest.mark.parametrize("head", [0, 1, INLINE_LIMIT, INLINE_LIMIT + 1, 5 << 20])
@pytest.mark.parametrize("payload", [0, 1, 8, INLINE_LIMIT, INLINE_LIMIT + 1, 5 << 20])
def test_a_frame_of_any_size_arrives_whole(pair: tuple[Side, Side], head: int, payload: int) -> None:
    ours, theirs = pair
    sent = (b"h" * head, bytes(n % 256 for n in range(256)) * (payload // 256) + b"p" * (payload % 256))
    frame = send(ours, theirs, *sent)
    assert (frame.kind, frame.head, bytes(frame.payload)) == (2, *sent)


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.lists(st.binary(max_size=40), max_size=3)), min_size=1, max_size=5)
)
def test_frames_that_come_together_are_taken_apart(frames: list[tuple[bytes, list[bytes]]]) -> None:
    ours, theirs = map(side, channel_pair())
    for head, parts in frames:
        ours.channel.send(3, head, parts, sum(map(len, parts)))
    got: list[Frame] = []
    while len(got) < len(frames):
        got += theirs.channel.receive()
    assert [(frame.head, bytes(frame.payload)) for frame in got] == [(head, b"".join(parts)) for head, parts in frames]
    ours.channel.close()
    assert theirs.channel.receive() == []
    theirs.channel.close()


def test_frames_that_come_in_pieces_are_put_together(pair: tuple[Side, Side]) -> None:
    ours, theirs = pair
    data, _ = ours.channel.pack(2, b"head", [b"payload!"], 8)
    for at in range(len(data)):
        ours.channel.sock.send(data[at : at + 1])
        if at < len(data) - 1:
            assert receive_all(theirs.channel) == ([], True)
    ((frame,), more) = receive_all(theirs.channel)
    assert (frame.head, bytes(frame.payload), more) == (b"head", b"payload!", True)


def test_a_segment_is_used_again_when_nobody_looks_at_it_any_more(pair: tuple[Side, Side]) -> None:
    ours, theirs = pair
    held = send(ours, theirs, b"", b"a" * 100_000)
    view = np.frombuffer(held.payload, np.uint8)[5:10]
    send(ours, theirs, b"", b"b" * 100_000)
    send(theirs, ours, b"", b"")
    assert ours.pool.segments() == 2
    for letter in b"cdef":
        send(ours, theirs, b"", bytes([letter]) * 100_000)
        send(theirs, ours, b"", b"")  # says what is free
    assert ours.pool.segments() == 2
    assert bytes(view) == b"aaaaa"
    del held, view
    send(theirs, ours, b"", b"")
    ours.pool.trim()
    assert ours.pool.segments() == 0
    send(ours, theirs, b"", b"")
    assert theirs.table.segments() == 0


def test_memory_that_is_kept_free_is_bounded() -> None:
    ours, theirs = (side(sock, limit=1 << 20) for sock in channel_pair())
    frames = [send(ours, theirs, b"", bytes(300_000)) for _ in range(8)]
    assert ours.pool.segments() == 8
    frames.clear()
    send(theirs, ours, b"", b"")
    assert ours.pool.segments() <= 3
    send(ours, theirs, b"", b"")
    assert theirs.table.segments() == ours.pool.segments()
    for end in (ours, theirs):
        end.channel.close()
        end.pool.close()


def test_nothing_stays_open_when_a_connection_ends_in_the_middle() -> None:
    gc.collect()
    before = open_descriptors()
    ours, theirs = map(side, channel_pair())
    send(ours, theirs, b"", bytes(100_000))
    ours.channel.send(2, b"", [bytes(100_000)], 100_000)  # never received
    for end in (ours, theirs):
        end.channel.close()
        end.pool.close()
        end.table.close()
    del ours, theirs, end
    gc.collect()
    assert open_descriptors() <= before


def test_a_payload_that_is_not_as_long_as_said_leaves_no_segment_in_use(pair: tuple[Side, Side]) -> None:
    ours, _ = pair
    with pytest.raises((IndexError, ValueError)):
        ours.channel.send(2, b"", [bytes(1 << 20)], 100_000)
    ours.pool.trim()
    assert ours.pool.segments() == 0


# -- a peer that lies


def header(**changes: int) -> bytes:
    fields = dict(kind=2, flags=0, released=0, dropped=0, zero=0, head=0, segment=0, payload=0, capacity=0)
    return HEADER.pack(*{**fields, **changes}.values())


@pytest.mark.parametrize(
    "data",
    [
        header(zero=1),
        header(flags=8),
        header(released=MAX_IDS + 1),
        header(dropped=MAX_IDS + 1),
        header(head=10 * INLINE_LIMIT),
        header(payload=10 * INLINE_LIMIT),
        header(payload=(1 << 64) - 1),
        header(flags=1, segment=1, payload=8, capacity=8),
        header(flags=5, segment=1, payload=8, capacity=8),
        header(flags=3, segment=9, payload=(1 << 64) - 1, head=(1 << 32) - 1),
    ],
)
def test_a_header_that_lies_is_refused(pair: tuple[Side, Side], data: bytes) -> None:
    ours, theirs = pair
    ours.channel.sock.send(data)
    with pytest.raises(WireError):
        theirs.channel.receive()


@given(st.binary(min_size=1, max_size=200))
def test_garbage_is_refused_or_waits_for_more(data: bytes) -> None:
    ours, theirs = map(side, channel_pair())
    ours.channel.sock.send(data)
    try:
        receive_all(theirs.channel)
    except WireError:
        pass
    ours.channel.close()
    theirs.channel.close()


def send_fd(sock: socket.socket, data: bytes, *fds: int) -> None:
    sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


@pytest.mark.skipif(sys.platform != "linux", reason="seals are Linux's")
def test_a_segment_that_could_shrink_under_its_reader_is_refused(pair: tuple[Side, Side]) -> None:
    ours, theirs = pair
    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, 1 << 20)
    send_fd(ours.channel.sock, header(flags=5, segment=1, payload=1 << 20, capacity=1 << 20), fd)
    os.close(fd)
    with pytest.raises(WireError, match="not sealed against shrinking"):
        theirs.channel.receive()


@pytest.mark.skipif(sys.platform != "linux", reason="seals are Linux's")
def test_a_segment_smaller_than_it_says_is_refused(pair: tuple[Side, Side]) -> None:
    ours, theirs = pair
    fd = os.memfd_create("small", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, mmap.PAGESIZE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    send_fd(ours.channel.sock, header(flags=5, segment=1, payload=1 << 20, capacity=1 << 20), fd)
    os.close(fd)
    with pytest.raises(WireError, match="has 4096 bytes, the message says 1048576"):
        theirs.channel.receive()


def test_more_descriptors_than_frames_are_refused_and_closed(pair: tuple[Side, Side]) -> None:
    ours, theirs = pair
    before = len(open_descriptors())
    read, write = os.pipe()
    for _ in range(20):
        send_fd(ours.channel.sock, header(), read, write)
    with pytest.raises(WireError, match="more descriptors"):
        for _ in range(20):
            theirs.channel.receive()
    os.close(read)
    os.close(write)
    theirs.channel.close()
    assert len(open_descriptors()) == before - 1


def test_a_segment_that_is_named_twice_at_once_is_refused(pair: tuple[Side, Side]) -> None:
    ours, theirs = pair
    frame = send(ours, theirs, b"", bytes(100_000))
    ours.channel.sock.send(header(flags=1, segment=1, payload=8))
    with pytest.raises(WireError, match="shared memory segment 1 is still in use"):
        theirs.channel.receive()
    assert len(frame.payload) == 100_000


def test_ids_that_mean_nothing_are_ignored(pair: tuple[Side, Side]) -> None:
    ours, theirs = pair
    ours.channel.sock.send(header(released=2, dropped=1) + struct.pack("<3I4x", 7, 1, 9))
    (frame,) = theirs.channel.receive()
    assert (frame.head, bytes(frame.payload)) == (b"", b"")


def test_a_table_takes_no_more_segments_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_dataplane.execution.shm.MAX_SEGMENTS", 2)
    table, pool = SegmentTable(writable=False), SegmentPool()
    segments = [pool.acquire(1) for _ in range(3)]
    before = len(open_descriptors())
    for segment in segments[:2]:
        table.attach(segment.id, segment.capacity, segment.take_fd())
    with pytest.raises(SegmentError, match="one too many"):
        table.attach(segments[2].id, segments[2].capacity, segments[2].take_fd())
    table.close()
    pool.close()
    assert len(open_descriptors()) < before


# -- sending that never blocks


def test_a_peer_that_does_not_read_never_blocks_the_sender() -> None:
    ours, theirs = channel_pair()
    receiver = side(theirs)
    blocked, overflow = [], []
    sender = QueuedChannel(
        ours,
        SegmentPool(),
        SegmentTable(writable=False),
        blocked=lambda: blocked.append(1),
        overflow=lambda: overflow.append(1),
        limit=1 << 20,
    )
    count = 0
    while not blocked:
        sender.send(2, b"%d" % count, [bytes(10_000)], 10_000)
        count += 1
    for _ in range(20):
        sender.send(2, b"%d" % count, [bytes(10_000)], 10_000)
        count += 1
    sender.send(2, b"last", [b"x" * 100_000], 100_000)  # with a descriptor that has to wait
    assert len(blocked) == 1
    assert not overflow
    assert not sender.flush()
    got: list[Frame] = []
    while len(got) <= count:
        got += receive_all(receiver.channel)[0]
        sender.flush()
    assert [frame.head for frame in got] == [b"%d" % n for n in range(count)] + [b"last"]
    assert bytes(got[-1].payload) == b"x" * 100_000
    assert sender.flush()
    sender.close()
    receiver.channel.close()


def test_a_peer_that_never_reads_is_given_up() -> None:
    ours, theirs = channel_pair()
    overflow: list[int] = []
    pool = SegmentPool()
    sender = QueuedChannel(
        ours,
        pool,
        SegmentTable(writable=False),
        blocked=lambda: None,
        overflow=lambda: overflow.append(1),
        limit=1 << 20,
    )
    for _ in range(200):
        sender.send(2, b"", [bytes(10_000)], 10_000)
    sender.send(2, b"", [bytes(100_000)], 100_000)
    assert overflow
    before = len(open_descriptors())
    sender.close()
    theirs.close()
    pool.close()
    wait_for(lambda: len(open_descriptors()) <= before - 3)


def test_a_peer_that_is_gone_is_an_error_of_the_sender() -> None:
    ours, theirs = channel_pair()
    sender = QueuedChannel(ours, SegmentPool(), SegmentTable(writable=False), lambda: None, lambda: None)
    theirs.close()
    before = len(open_descriptors())
    with pytest.raises(BrokenPipeError):
        sender.send(2, b"", [bytes(100_000)], 100_000)
    assert len(open_descriptors()) <= before + 1, "the segment itself is mapped, its descriptor is closed"
    sender.close()
