"""POST .../generate and .../generate_stream: flat JSON in, flat JSON or server-sent events out (triton.md I14)."""

from __future__ import annotations

import msgspec
from aiohttp import web

from shoal_dataplane.codec.generate import decode_generate, encode_generate
from shoal_dataplane.core.errors import ServingError, internal
from shoal_dataplane.core.request import InferRequest, ReplyHandle
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.server.http_context import HttpContext
from shoal_dataplane.server.http_infer import ask
from shoal_dataplane.server.http_io import decode_body, read_body, run_in, work_size
from shoal_dataplane.server.http_protocol import SERVER, json_response
from shoal_dataplane.server.http_reply import SingleReply, StreamReply

_EXACTLY_ONE = (
    "generate expects model to produce exactly 1 response, "
    "use generate stream for model that generates various number of responses"
)


async def generate(context: HttpContext, source: web.BaseRequest, model: str, version: str) -> web.StreamResponse:
    """Answer with the model's one response. Raises ServingError and HttpError."""
    reply = SingleReply(context.mailbox, context.loop)
    request = await _read(context, source, reply, model, version)
    response = await ask(context, request, reply)
    if reply.count != 1:
        raise internal(_EXACTLY_ONE)
    return json_response(None, encoded=await _encode(context, request, response))


async def generate_stream(
    context: HttpContext, source: web.BaseRequest, model: str, version: str
) -> web.StreamResponse:
    """Send each response as a server-sent event as it comes. An error before the first is the HTTP status; a later one is an event.

    Raises ServingError and HttpError.
    """
    transport = source.transport
    if transport is None:
        raise ConnectionResetError("the client is gone")
    reply = StreamReply(context.mailbox, too_slow=transport.abort)  # which ends in the cancellation below
    request = await _read(context, source, reply, model, version)
    context.submit(request)
    try:
        return await _stream(context, source, request, reply)
    finally:
        if not reply.ended:
            context.cancel(request)


async def _stream(
    context: HttpContext, source: web.BaseRequest, request: InferRequest, reply: StreamReply
) -> web.StreamResponse:
    response = await reply.next()
    if response is not None and response.error is not None:
        raise response.error
    stream = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "Server": SERVER}
    )
    if context.draining:
        stream.force_close()
    await stream.prepare(source)
    while response is not None:
        await stream.write(b"data: " + await _event(context, request, response) + b"\n\n")
        response = await reply.next()
    await stream.write_eof()
    return stream


async def _event(context: HttpContext, request: InferRequest, response: InferResponse) -> bytes:
    error = response.error
    if error is None:
        try:
            return await _encode(context, request, response)
        except ServingError as refusal:
            error = refusal
    return msgspec.json.encode({"error": error.message})


async def _encode(context: HttpContext, request: InferRequest, response: InferResponse) -> bytes:
    return await run_in(context.workers, work_size(response.outputs), encode_generate, request, response)


async def _read(
    context: HttpContext, source: web.BaseRequest, reply: ReplyHandle, model: str, version: str
) -> InferRequest:
    arrival_ns = context.service.loop.now_ns()
    body = await read_body(source, context.max_bytes)
    try:
        spec = context.service.spec(model, version)
        body = await decode_body(source, body, context.max_bytes, context.workers)
        document = await run_in(context.workers, len(body), decode_generate, body, spec, context.limits)
        request = InferRequest(
            model,
            version,
            document.inputs,
            reply,
            id=document.id,
            parameters=document.parameters,
            arrival_ns=arrival_ns,
        )
        context.carry(source, request)
    except ServingError as error:
        raise context.refused(error) from None
    return request
