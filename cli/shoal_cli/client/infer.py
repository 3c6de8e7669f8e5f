"""`shoal infer MODEL`: ask a model once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Protocol

import click

from shoal_cli.client.http import DEFAULT_URL, ClientError, HttpClient
from shoal_cli.client.render import as_json, classes, describe
from shoal_cli.client.tensors import ClientTensor
from shoal_cli.client.values import InputError, build, split
from shoal_cli.text import seconds


class Client(Protocol):
    """What both protocols' clients do. The calls raise ClientError."""

    def close(self) -> None: ...

    def metadata(self, model: str, version: str = "") -> dict[str, Any]: ...

    def infer(
        self,
        model: str,
        inputs: Sequence[ClientTensor],
        outputs: Sequence[str] = (),
        classify: int = 0,
        version: str = "",
    ) -> tuple[dict[str, Any], list[ClientTensor]]: ...


@click.command("infer")
@click.argument("model")
@click.option(
    "-i", "--input", "inputs", multiple=True, metavar="NAME=VALUE", help="A value, or @FILE; repeat it for a batch."
)
@click.option("-o", "--output", "outputs", multiple=True, metavar="NAME", help="Only this output; may be repeated.")
@click.option(
    "--classify", default=0, type=click.IntRange(min=0), metavar="K", help="Show the K best classes, with labels."
)
@click.option("--model-version", default="", metavar="N", help="This version; otherwise the highest that is ready.")
@click.option("--url", default="", envvar="SHOAL_URL", help=f"The server.  [{DEFAULT_URL}, with --grpc localhost:8001]")
@click.option("--grpc", "use_grpc", is_flag=True, help="Ask over gRPC.")
@click.option("--timeout", default=60.0, show_default=True, callback=seconds, help="Seconds to wait for an answer.")
@click.option("--full", is_flag=True, help="Print every value.")
@click.option("--json", "use_json", is_flag=True, help="Print JSON.")
def command(
    model: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    classify: int,
    model_version: str,
    url: str,
    use_grpc: bool,
    timeout: float,
    full: bool,
    use_json: bool,
) -> None:
    """Ask MODEL once, and print its outputs.

    \b
    A VALUE is what fits the input:
      text=hello                 a string
      x=1.5   x=[[1,2],[3,4]]    a number, or a JSON list
      x=@values.npy              a numpy array
      image=@cat.jpg             a picture, cropped and scaled to the input
      text=@story.txt  text=@-   a file's text, or standard input
    """
    try:
        given = [split(text) for text in inputs]
        with closing(_client(url, use_grpc, timeout)) as client:
            metadata = client.metadata(model, model_version)
            wanted = outputs or tuple(output["name"] for output in metadata.get("outputs", []))
            header, tensors = client.infer(model, build(given, metadata), wanted, classify, model_version)
    except (ClientError, InputError) as error:
        raise click.ClickException(str(error)) from error
    if use_json:
        answer = {key: header[key] for key in ("model_name", "model_version", "parameters") if header.get(key)}
        click.echo(json.dumps({**answer, "outputs": as_json(tensors)}))
        return
    for tensor in tensors:
        click.echo(classes(tensor) if classify else describe(tensor, full=full))


def _client(url: str, use_grpc: bool, timeout: float) -> Client:
    if not use_grpc:
        return HttpClient(url or DEFAULT_URL, timeout)
    from shoal_cli.client.grpc import GrpcClient

    return GrpcClient(url or "localhost:8001", timeout)
