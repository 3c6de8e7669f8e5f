"""POST .../infer: one request, one response, in JSON with or without binary tensors (triton.md I3, I4, I10)."""

from __future__ import annotations

import asyncio

from aiohttp import web

from shoal_dataplane.codec.classification import classify_outputs
from shoal_dataplane.codec.compression import choose_encoding
from shoal_dataplane.codec.kserve_json import (
    EncodedResponse,
    InferDocument,
    decode_infer,
    encode_infer,
    raw_document,
)
from shoal_dataplane.core.errors import ServingError, invalid, unimplemented
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Buffer
from shoal_dataplane.server.http_context import HttpContext
from shoal_dataplane.server.http_io import decode_body, header_length, read_body, run_in, send, work_size
from shoal_dataplane.server.http_protocol import JSON
from shoal_dataplane.server.http_reply import SingleReply


async def infer(context: HttpContext, source: web.BaseRequest, model: str, version: str) -> web.StreamResponse:
    """Answer an inference request. Raises ServingError and HttpError."""
    arrival_ns = context.service.loop.now_ns()
    reply = SingleReply(context.mailbox, context.loop)
    body = await read_body(source, context.max_bytes)
    try:
        request, document = await _read(context, source, body, reply, model, version)
    except ServingError as error:
        raise context.refused(error) from None
    del body  # its tensors are in the request, for as long as they are needed
    request.arrival_ns = arrival_ns
    response = await ask(context, request, reply)
    if reply.count > 1:
        raise unimplemented("HTTP end point doesn't support models with decoupled transaction policy")
    encoded = await run_in(context.workers, work_size(response.outputs), _encode, request, response, document)
    headers = {"Content-Type": JSON}
    if encoded.is_binary:
        headers = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(encoded.header)),
        }
    accepted = source.headers.get("Accept-Encoding")
    encoding = choose_encoding(accepted) if accepted else "identity"
    parts = [encoded.header, *encoded.tensors]
    return await send(source, parts, headers, encoding, context.workers, keep_alive=not context.draining)


async def _read(
    context: HttpContext, source: web.BaseRequest, body: Buffer, reply: SingleReply, model: str, version: str
) -> tuple[InferRequest, InferDocument]:
    body = await decode_body(source, body, context.max_bytes, context.workers)
    view = memoryview(body).toreadonly()
    length = header_length(source, len(view))
    if length:
        document = await run_in(
            context.workers, length, decode_infer, view[:length], view[length:], context.limits, model
        )
    elif "Inference-Header-Content-Length" in source.headers:
        document = raw_document(context.service.spec(model, version), view)
    else:
        raise invalid("the request has no body: expected a JSON object with 'inputs'")
    request = InferRequest(model, version, document.inputs, reply, id=document.id, outputs=document.outputs)
    document.parameters.apply(request)
    context.carry(source, request)
    return request, document


async def ask(context: HttpContext, request: InferRequest, reply: SingleReply) -> InferResponse:
    """Submit a request and return its first response when the last has come. A client that leaves meanwhile cancels it.

    Raises the ServingError that the response carries.
    """
    context.submit(request)
    try:
        response = await reply.wait()
    except asyncio.CancelledError:
        context.cancel(request)
        raise
    if response.error is not None:
        raise response.error
    return response


def _encode(request: InferRequest, response: InferResponse, document: InferDocument) -> EncodedResponse:
    if document.classes:
        classify_outputs(response, request, document.classes)
    return encode_infer(request, response, document)
