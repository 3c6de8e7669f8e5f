"""From the core loop's thread to the HTTP loop: nothing is lost, everything comes in order."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from shoal_dataplane.core.errors import internal
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse, failure
from shoal_dataplane.core.tensors import Tensor
from shoal_dataplane.server import http_reply
from shoal_dataplane.server.http_reply import Mailbox, SingleReply, StreamReply


def data(number: int, final: bool = False) -> InferResponse:
    return InferResponse([Tensor("OUT", "INT32", (1,), np.array([number], np.int32))], final=final)


def value(response: InferResponse | None) -> int:
    assert response is not None
    return int(response.outputs[0].array()[0])


def from_another_thread(reply: SingleReply | StreamReply, *responses: InferResponse) -> None:
    request = InferRequest("m", "", {}, reply)

    def run() -> None:
        for response in responses:
            reply.respond(request, response)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


async def test_every_posted_call_runs_once_and_in_order() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    got: list[int] = []
    done = asyncio.Event()

    def take(number: int) -> None:
        got.append(number)
        if len(got) == 20_000:
            done.set()

    def post() -> None:
        for number in range(20_000):
            mailbox.post(take, number)

    thread = threading.Thread(target=post)
    thread.start()
    await asyncio.wait_for(done.wait(), 20)
    thread.join()
    assert got == list(range(20_000))


def test_a_closed_loop_takes_no_more_and_keeps_nothing() -> None:
    loop = asyncio.new_event_loop()
    mailbox = Mailbox(loop)
    loop.close()
    mailbox.post(print, 1)
    assert not mailbox._items


@pytest.mark.parametrize(
    ("responses", "count", "first"),
    [
        ([data(5, final=True)], 1, 5),
        ([data(5), InferResponse([])], 1, 5),
        ([data(5), data(6), InferResponse([])], 2, 5),
        ([data(5), data(6, final=True)], 2, 5),
    ],
)
async def test_a_single_reply_waits_for_the_last_and_gives_the_first(
    responses: list[InferResponse], count: int, first: int
) -> None:
    loop = asyncio.get_running_loop()
    reply = SingleReply(Mailbox(loop), loop)
    waiting = asyncio.ensure_future(reply.wait())
    from_another_thread(reply, *responses[:-1])
    await asyncio.sleep(0)
    assert not waiting.done()
    from_another_thread(reply, responses[-1])
    assert value(await waiting) == first
    assert reply.count == count


async def test_no_response_at_all_is_counted_as_none() -> None:
    loop = asyncio.get_running_loop()
    reply = SingleReply(Mailbox(loop), loop)
    from_another_thread(reply, InferResponse([]))
    assert not (await reply.wait()).outputs
    assert reply.count == 0


async def test_an_answer_to_a_waiter_that_is_gone_is_dropped() -> None:
    loop = asyncio.get_running_loop()
    reply = SingleReply(Mailbox(loop), loop)
    waiting = asyncio.ensure_future(reply.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    from_another_thread(reply, failure(internal("too late")))
    await asyncio.sleep(0)


async def test_a_stream_reply_gives_all_in_order_and_then_none() -> None:
    reply = StreamReply(Mailbox(asyncio.get_running_loop()), too_slow=lambda: None)
    first = asyncio.ensure_future(reply.next())
    await asyncio.sleep(0)
    from_another_thread(reply, data(1), data(2))
    assert value(await first) == 1
    assert value(await reply.next()) == 2
    assert not reply.ended
    from_another_thread(reply, failure(internal("broken")))
    last = await reply.next()
    assert last is not None
    assert last.error is not None
    assert await reply.next() is None
    assert reply.ended


async def test_a_stream_reply_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_reply, "MAX_PENDING", 10)
    calls: list[int] = []
    reply = StreamReply(Mailbox(asyncio.get_running_loop()), too_slow=lambda: calls.append(1))
    from_another_thread(reply, *(data(number) for number in range(15)))
    await asyncio.sleep(0)
    assert len(calls) == 5
    assert [value(await reply.next()) for _ in range(10)] == list(range(10))
