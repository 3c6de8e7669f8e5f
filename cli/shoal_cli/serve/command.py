"""`shoal serve`: the command line."""

from __future__ import annotations

import logging
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from shoal_api.kinds import ManifestError
from shoal_cli.serve.flags import HONOURED, SECTIONS
from shoal_cli.serve.options import server_options
from shoal_cli.serve.other_flags import OTHERS, FlagError, ignored
from shoal_cli.serve.paths import plan_paths
from shoal_cli.text import plural
from shoal_dataplane.options import ServerOptions

logger = logging.getLogger(__name__)

HELP = """Serve models until Ctrl-C.

PATH is a YAML file or folder of InferenceModel manifests, or a model repository in Triton's layout; several may be given.
--model-repository names a repository as tritonserver does, and all of tritonserver's flags are understood.

\b
shoal serve manifests/quickstart
shoal serve --model-repository /models --model-control-mode=poll
"""


class ServeCommand(click.Command):
    """Writes its many options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in SECTIONS:
            with formatter.section(section):
                formatter.write_dl([flag.help_record() for flag in HONOURED if flag.section == section])
        accepted = [f"--{other.flag.name}" for other in OTHERS if other.harmless is None]
        refused = [f"--{other.flag.name}" for other in OTHERS if other.harmless is not None]
        for title, names in (("Accepted without effect", accepted), ("Refused unless switched off", refused)):
            with formatter.section(title):
                for line in textwrap.wrap(" ".join(names), formatter.width - 2, break_on_hyphens=False):
                    formatter.write(f"  {line}\n")


def run(paths: tuple[Path, ...], **values: Any) -> None:
    """Read the command line, serve, and exit with the server's code."""
    try:
        plan = plan_paths(paths)
        options = server_options(values, plan.repositories)
    except FlagError as error:
        raise click.UsageError(str(error)) from error
    except ManifestError as error:
        click.echo(str(error), err=True)
        problems = plural(len(error.lines), "problem")
        raise click.ClickException(f"{problems} in the manifests; nothing was started") from error
    if not options.repository.paths and not plan.entries:
        raise click.UsageError("nothing to serve: give a PATH (manifests or a repository), or --model-repository=DIR")
    _configure_logs(options, values)
    notes = ignored(values)
    if notes:
        logger.info("flags without effect here: %s", ", ".join(notes))
    from shoal_cli.serve.report import SilentReporter, reporter
    from shoal_cli.serve.run import serve

    quiet = options.log_format == "json"
    sys.exit(serve(options, plan.entries, SilentReporter() if quiet else reporter(), quiet))


def _configure_logs(options: ServerOptions, values: Mapping[str, Any]) -> None:
    from shoal_dataplane.telemetry import logs

    switches: dict[str, Any] = {kind: values.get(f"log_{kind}") is not False for kind in ("info", "warning", "error")}
    file = values.get("log_file")
    try:
        logs.configure(
            options.log_format,
            options.log_verbose,
            file=Path(file) if file else None,
            **switches,
        )
    except OSError as error:
        raise click.UsageError(f"--log-file={file}: {error.strerror}") from error


command = ServeCommand(
    "serve",
    context_settings={"max_content_width": 110},
    params=[
        click.Argument(["paths"], nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path)),
        *(flag.option() for flag in HONOURED),
        *(other.flag.option(hidden=True) for other in OTHERS),
    ],
    callback=run,
    help=HELP,
    short_help="Serve models: manifests, or a Triton model repository.",
)
