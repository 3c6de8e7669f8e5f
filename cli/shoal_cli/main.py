"""The command `shoal`. Each subcommand's module is imported only when it is called, so that `shoal --help` costs nothing."""

from __future__ import annotations

import difflib
import importlib
from typing import Final, NamedTuple

import click


class Entry(NamedTuple):
    """Where a subcommand is, and what the overview says of it."""

    module: str
    summary: str


COMMANDS: Final = {
    "serve": Entry("shoal_cli.serve.command", "Serve models: manifests, or a Triton model repository."),
    "quickstart": Entry("shoal_cli.quickstart.command", "Fetch real models, serve them, ask them, in one go."),
    "models": Entry("shoal_cli.client.models", "List the models of a running server."),
    "infer": Entry("shoal_cli.client.infer", "Ask a model of a running server."),
    "digest": Entry("shoal_cli.digest", "Print the digest that a manifest names a model by."),
    "version": Entry("shoal_cli.version", "Print the version, and which backends are installed."),
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = importlib.import_module(entry.module).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"No such command '{args[0]}'." + (f" Did you mean '{close[0]}'?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(package_name="shoal", prog_name="shoal", message="%(prog)s %(version)s")
def main() -> None:
    """Kubernetes-native model serving that speaks Triton's protocol.

    \b
    shoal quickstart                      see real models answer, in a minute
    shoal serve manifests/quickstart      serve what the manifests declare
    shoal serve --model-repository DIR    serve a Triton model repository
    """


if __name__ == "__main__":
    main(prog_name="shoal")
