"""The flags of `shoal serve`: Triton's names and values, so that a tritonserver command line keeps working, and a few of Shoal's own.

Every flag of Triton's server (2.51 to 2.6x) is in one of the two tables: `HONOURED` here, or `OTHERS` in `other_flags.py`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final

import click


class Kind(enum.Enum):
    """How a value is written."""

    BOOL = "BOOL"
    INT = "INT"
    PORT = "PORT"
    SECONDS = "SECONDS"
    LEVEL = "LEVEL"
    TEXT = "TEXT"


@dataclass(frozen=True)
class Flag:
    """One flag. `choices` bounds a TEXT, `least` an INT. A `repeatable` flag collects its values, of any other the last one counts."""

    name: str
    kind: Kind
    section: str
    help: str
    choices: tuple[str, ...] = ()
    least: int = 0
    repeatable: bool = False
    aliases: tuple[str, ...] = ()
    metavar: str = ""

    @property
    def key(self) -> str:
        """The name of its value: "grpc_port" for --grpc-port."""
        return self.name.replace("-", "_")

    def option(self, *, hidden: bool = False) -> click.Option:
        """The option that click parses. A bare boolean means true, as in `--strict-readiness`."""
        more: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if self.kind is Kind.BOOL else {}
        return click.Option(
            [f"--{self.name}", *(f"--{alias}" for alias in self.aliases), self.key],
            type=self._type(),
            default=None,
            multiple=self.repeatable,
            metavar=self._metavar(),
            help=self.help,
            hidden=hidden,
            **more,
        )

    def help_record(self) -> tuple[str, str]:
        """Its line in the help."""
        names = ", ".join(f"--{name}" for name in (self.name, *self.aliases))
        return f"{names} {self._metavar()}", self.help

    def _metavar(self) -> str:
        return self.metavar or "|".join(self.choices) or self.kind.value

    def _type(self) -> click.ParamType[Any]:
        match self.kind:
            case Kind.BOOL:
                return click.BOOL
            case Kind.INT:
                return click.IntRange(min=self.least)
            case Kind.PORT:
                return click.IntRange(0, 65535)
            case Kind.SECONDS:
                return click.FloatRange(min=self.least)
            case Kind.LEVEL:
                return Level()
            case Kind.TEXT:
                return click.Choice(self.choices) if self.choices else click.STRING


class Level(click.ParamType[int]):
    """A verbosity: a number, or true for 1."""

    name = "level"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        words = {"true": 1, "on": 1, "false": 0, "off": 0}
        text = str(value).lower()
        if text in words:
            return words[text]
        if text.isascii() and text.isdigit() and len(text) <= 6:
            return int(text)
        return self.fail(f"'{value}' is no level: expected a number from 0, or true", param, ctx)


_MODELS, _SERVER, _HTTP, _GRPC, _METRICS, _LOGS = "Models", "Server", "HTTP", "gRPC", "Metrics", "Logs"
SECTIONS: Final = (_MODELS, _SERVER, _HTTP, _GRPC, _METRICS, _LOGS)

HONOURED: Final = (
    Flag("model-repository", Kind.TEXT, _MODELS, "A folder of models, in Triton's layout.", metavar="DIR",
         repeatable=True, aliases=("model-store",)),
    Flag("model-control-mode", Kind.TEXT, _MODELS, "Load all once (none), follow the folder (poll), or load what is asked for (explicit).",
         choices=("none", "poll", "explicit")),
    Flag("load-model", Kind.TEXT, _MODELS, "In explicit mode: load this model at the start; * for all.", metavar="NAME", repeatable=True),
    Flag("repository-poll-secs", Kind.INT, _MODELS, "In poll mode: how often to look.  [15]", least=1),
    Flag("disable-auto-complete-config", Kind.BOOL, _MODELS, "Do not fill a model's configuration from its file."),
    Flag("strict-model-config", Kind.BOOL, _MODELS, "The old name of the same."),
    Flag("model-config-name", Kind.TEXT, _MODELS, "Use configs/NAME.pbtxt of a model that has it.", metavar="NAME"),
    Flag("model-load-thread-count", Kind.INT, _MODELS, "Models that load at once.  [4]", least=1),
    Flag("model-load-retry-count", Kind.INT, _MODELS, "Try a failed load again so often.  [0]"),
    Flag("backend-config", Kind.TEXT, _MODELS, "A setting of one backend, or of all.", metavar="[BACKEND,]KEY=VALUE", repeatable=True),
    Flag("id", Kind.TEXT, _SERVER, "The name that the server gives for itself.  [shoal]", metavar="NAME"),
    Flag("exit-on-error", Kind.BOOL, _SERVER, "End when a model cannot be loaded at the start.  [true]"),
    Flag("strict-readiness", Kind.BOOL, _SERVER, "Be ready only while every model is.  [true]"),
    Flag("exit-timeout-secs", Kind.SECONDS, _SERVER, "At the end, wait so long for requests in flight.  [30]"),
    Flag("lame-duck-secs", Kind.SECONDS, _SERVER, "At the end, stay open so long while reporting not ready.  [0]"),
    Flag("allow-http", Kind.BOOL, _HTTP, "Open the HTTP port.  [true]"),
    Flag("http-address", Kind.TEXT, _HTTP, "Listen on this address.  [0.0.0.0]", metavar="ADDRESS"),
    Flag("http-port", Kind.PORT, _HTTP, "Listen on this port; 0 for a free one.  [8000]"),
    Flag("reuse-http-port", Kind.BOOL, _HTTP, "Let several servers share the port."),
    Flag("http-header-forward-pattern", Kind.TEXT, _HTTP, "Hand headers that match to the model, as parameters.", metavar="REGEX"),
    Flag("http-max-input-size", Kind.INT, _HTTP, "Largest request body, in bytes.  [67108864]", least=1),
    Flag("allow-grpc", Kind.BOOL, _GRPC, "Open the gRPC port.  [true]"),
    Flag("grpc-address", Kind.TEXT, _GRPC, "Listen on this address.  [0.0.0.0]", metavar="ADDRESS"),
    Flag("grpc-port", Kind.PORT, _GRPC, "Listen on this port; 0 for a free one.  [8001]"),
    Flag("reuse-grpc-port", Kind.BOOL, _GRPC, "Let several servers share the port."),
    Flag("grpc-header-forward-pattern", Kind.TEXT, _GRPC, "Hand metadata that matches to the model, as parameters.", metavar="REGEX"),
    Flag("grpc-use-ssl", Kind.BOOL, _GRPC, "Speak TLS; needs the certificate and the key."),
    Flag("grpc-use-ssl-mutual", Kind.BOOL, _GRPC, "Speak TLS, and ask clients for a certificate; needs the root certificate too."),
    Flag("grpc-server-cert", Kind.TEXT, _GRPC, "The server's certificate, PEM.", metavar="FILE"),
    Flag("grpc-server-key", Kind.TEXT, _GRPC, "The server's key, PEM.", metavar="FILE"),
    Flag("grpc-root-cert", Kind.TEXT, _GRPC, "The certificates that clients' are checked against, PEM.", metavar="FILE"),
    Flag("grpc-infer-response-compression-level", Kind.TEXT, _GRPC, "Compress responses.  [none]",
         choices=("none", "low", "medium", "high")),
    Flag("grpc-keepalive-time", Kind.INT, _GRPC, "Ping an idle connection after so many ms.  [7200000]"),
    Flag("grpc-keepalive-timeout", Kind.INT, _GRPC, "Close it when no answer comes within so many ms.  [20000]"),
    Flag("grpc-keepalive-permit-without-calls", Kind.BOOL, _GRPC, "Ping also while no call is open."),
    Flag("grpc-http2-max-pings-without-data", Kind.INT, _GRPC, "Pings without data between; 0 for any number.  [2]"),
    Flag("grpc-http2-min-recv-ping-interval-without-data", Kind.INT, _GRPC, "Clients may ping no oftener than in so many ms.  [300000]"),
    Flag("grpc-http2-max-ping-strikes", Kind.INT, _GRPC, "Bad pings before a client is cut off; 0 for any number.  [2]"),
    Flag("grpc-max-connection-age", Kind.INT, _GRPC, "End a connection after so many ms; 0 for never.  [0]"),
    Flag("grpc-max-connection-age-grace", Kind.INT, _GRPC, "Then let its calls run on for so many ms.  [0]"),
    Flag("grpc-front", Kind.TEXT, _GRPC, "Which gRPC server: the faster one where it works (auto), or one of them.",
         choices=("auto", "fast", "aio")),
    Flag("allow-metrics", Kind.BOOL, _METRICS, "Open the metrics port.  [true]"),
    Flag("allow-gpu-metrics", Kind.BOOL, _METRICS, "Report GPUs.  [true]"),
    Flag("allow-cpu-metrics", Kind.BOOL, _METRICS, "Report CPU and memory.  [true]"),
    Flag("metrics-address", Kind.TEXT, _METRICS, "Listen on this address.  [that of HTTP]", metavar="ADDRESS"),
    Flag("metrics-port", Kind.PORT, _METRICS, "Listen on this port; 0 for a free one.  [8002]"),
    Flag("metrics-interval-ms", Kind.INT, _METRICS, "Sample the machine so often.  [2000]", least=1),
    Flag("log-verbose", Kind.LEVEL, _LOGS, "Log more; 0 for not.  [0]"),
    Flag("log-info", Kind.BOOL, _LOGS, "Log what happens.  [true]"),
    Flag("log-warning", Kind.BOOL, _LOGS, "Log warnings.  [true]"),
    Flag("log-error", Kind.BOOL, _LOGS, "Log errors.  [true]"),
    Flag("log-format", Kind.TEXT, _LOGS, "default and ISO8601 are text, as Triton names it.",
         choices=("default", "ISO8601", "text", "json")),
    Flag("log-file", Kind.TEXT, _LOGS, "Write the log to this file instead of the terminal.", metavar="FILE"),
)  # fmt: skip
