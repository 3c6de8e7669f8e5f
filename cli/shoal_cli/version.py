"""`shoal version`: what is installed."""

from __future__ import annotations

import platform
from importlib import metadata

import click

BACKENDS = {"PyTorch": "torch", "ONNX": "onnxruntime"}
"""The distribution that each backend needs; Python models need none."""


@click.command("version")
def command() -> None:
    """Print the version of Shoal, and which backends are installed."""
    click.echo(f"shoal {metadata.version('shoal')}")
    click.echo(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for backend, distribution in BACKENDS.items():
        click.echo(f"{backend}: {_installed(distribution) or f'not installed ({distribution})'}")
    click.echo(f"gRPC: {_installed('grpcio') or 'not installed (grpcio)'}")


def _installed(distribution: str) -> str:
    """ "torch 2.13.0", or nothing. The metadata is asked, not the package: importing torch takes seconds."""
    try:
        return f"{distribution} {metadata.version(distribution)}"
    except metadata.PackageNotFoundError:
        return ""
