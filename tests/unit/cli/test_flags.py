"""A tritonserver command line keeps working: every flag is known, acts or says why not, and none that protects is ignored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from shoal_cli.serve import command as serve_command
from shoal_cli.serve.flags import HONOURED
from shoal_cli.serve.options import server_options
from shoal_cli.serve.other_flags import OTHERS, FlagError, ignored
from shoal_dataplane.options import ControlMode, GrpcOptions, ServerOptions, TlsOptions

# Of srv:command_line_parser.cc; --help is every command's.
TRITON = re.findall(
    "[a-z0-9-]+",
    """
id exit-timeout-secs model-store model-repository exit-on-error disable-auto-complete-config strict-readiness
model-control-mode repository-poll-secs load-model model-config-name model-load-thread-count model-load-retry-count
model-namespacing enable-peer-access allow-http http-address http-port reuse-http-port http-header-forward-pattern
http-thread-count http-max-input-size http-restricted-api allow-grpc grpc-address grpc-port reuse-grpc-port
grpc-header-forward-pattern grpc-infer-thread-count grpc-max-response-pool-size grpc-use-ssl grpc-use-ssl-mutual
grpc-server-cert grpc-server-key grpc-root-cert grpc-keepalive-time grpc-keepalive-timeout grpc-http2-max-ping-strikes
grpc-max-connection-age grpc-restricted-protocol log-verbose log-info log-warning log-error log-format log-file
allow-sagemaker sagemaker-port sagemaker-safe-port-range sagemaker-thread-count allow-vertex-ai vertex-ai-port
vertex-ai-thread-count vertex-ai-default-model allow-metrics allow-gpu-metrics allow-cpu-metrics metrics-address
metrics-port metrics-interval-ms metrics-config trace-config cache-config cache-directory rate-limit
rate-limit-resource pinned-memory-pool-byte-size cuda-memory-pool-byte-size cuda-virtual-address-size
buffer-manager-thread-count host-policy model-load-gpu-limit allow-client-shm backend-directory backend-config
repoagent-directory strict-model-config response-cache-byte-size trace-file trace-level trace-rate trace-count
trace-log-frequency grpc-infer-allocation-pool-size grpc-infer-response-compression-level
grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data grpc-http2-min-recv-ping-interval-without-data
grpc-max-connection-age-grace
""",
)


def parse(*arguments: str) -> dict[str, Any]:
    """The values that the callback of `shoal serve` would get."""
    return serve_command.command.make_context("serve", list(arguments)).params


def options(*arguments: str) -> ServerOptions:
    return server_options(parse(*arguments))


@pytest.mark.parametrize("name", TRITON)
def test_every_flag_of_triton_is_known(name: str) -> None:
    names = {f"--{alias}" for flag in (*HONOURED, *(o.flag for o in OTHERS)) for alias in (flag.name, *flag.aliases)}
    assert f"--{name}" in names


def test_no_flag_is_in_both_tables() -> None:
    names = [flag.name for flag in HONOURED] + [other.flag.name for other in OTHERS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("argument", "path", "value"),
    [
        ("--id=x", "server_id", "x"),
        ("--exit-timeout-secs=7", "exit_timeout_seconds", 7.0),
        ("--lame-duck-secs=0.5", "lame_duck_seconds", 0.5),
        ("--exit-on-error=false", "exit_on_error", False),
        ("--strict-readiness=0", "strict_readiness", False),
        ("--log-verbose=2", "log_verbose", 2),
        ("--log-verbose=true", "log_verbose", 1),
        ("--log-format=json", "log_format", "json"),
        ("--log-format=ISO8601", "log_format", "text"),
        ("--model-control-mode=poll", "repository.control_mode", ControlMode.POLL),
        ("--repository-poll-secs=3", "repository.poll_seconds", 3),
        ("--disable-auto-complete-config", "repository.auto_complete", False),
        ("--strict-model-config=true", "repository.auto_complete", False),
        ("--strict-model-config=false", "repository.auto_complete", True),
        ("--model-config-name=big", "repository.config_name", "big"),
        ("--model-load-thread-count=9", "repository.load_threads", 9),
        ("--model-load-retry-count=2", "repository.load_retries", 2),
        ("--allow-http=off", "http.enabled", False),
        ("--http-address=127.0.0.1", "http.address", "127.0.0.1"),
        ("--http-port=0", "http.port", 0),
        ("--reuse-http-port=1", "http.reuse_port", True),
        ("--http-header-forward-pattern=x-.*", "http.header_forward_pattern", "x-.*"),
        ("--http-max-input-size=1024", "http.max_input_bytes", 1024),
        ("--allow-grpc=false", "grpc.enabled", False),
        ("--grpc-address=::1", "grpc.address", "::1"),
        ("--grpc-port=9", "grpc.port", 9),
        ("--reuse-grpc-port=true", "grpc.reuse_port", True),
        ("--grpc-header-forward-pattern=x", "grpc.header_forward_pattern", "x"),
        ("--grpc-infer-response-compression-level=high", "grpc.response_compression", "high"),
        ("--grpc-keepalive-time=1", "grpc.keepalive_time_ms", 1),
        ("--grpc-keepalive-timeout=2", "grpc.keepalive_timeout_ms", 2),
        ("--grpc-keepalive-permit-without-calls=true", "grpc.keepalive_permit_without_calls", True),
        ("--grpc-http2-max-pings-without-data=3", "grpc.max_pings_without_data", 3),
        ("--grpc-http2-min-recv-ping-interval-without-data=4", "grpc.min_recv_ping_interval_ms", 4),
        ("--grpc-http2-max-ping-strikes=5", "grpc.max_ping_strikes", 5),
        ("--grpc-max-connection-age=6", "grpc.max_connection_age_ms", 6),
        ("--grpc-max-connection-age-grace=7", "grpc.max_connection_age_grace_ms", 7),
        ("--grpc-front=aio", "grpc.front", "aio"),
        ("--allow-metrics=false", "metrics.enabled", False),
        ("--allow-gpu-metrics=false", "metrics.gpu", False),
        ("--allow-cpu-metrics=false", "metrics.cpu", False),
        ("--metrics-address=10.0.0.1", "metrics.address", "10.0.0.1"),
        ("--metrics-port=9", "metrics.port", 9),
        ("--metrics-interval-ms=50", "metrics.interval_ms", 50),
    ],
)
def test_an_honoured_flag_reaches_its_option_and_no_other(argument: str, path: str, value: object) -> None:
    given, plain = options(argument), options()
    here: Any = given
    for step in path.split("."):
        here = getattr(here, step)
    assert here == value
    top = path.split(".", maxsplit=1)[0]
    for name in ServerOptions.__dataclass_fields__:
        if name not in (top, "metrics"):
            assert getattr(given, name) == getattr(plain, name)


def test_flags_that_are_absent_keep_the_defaults() -> None:
    assert options() == ServerOptions()


def test_metrics_listen_where_http_does_unless_told_otherwise() -> None:
    assert options("--http-address=127.0.0.1").metrics.address == "127.0.0.1"
    assert options("--http-address=127.0.0.1", "--metrics-address=0.0.0.0").metrics.address == "0.0.0.0"


@pytest.mark.parametrize("text", ["true", "True", "1", "on", "yes"])
def test_booleans_are_written_in_tritons_ways(text: str) -> None:
    assert options(f"--reuse-http-port={text}").http.reuse_port is True


def test_a_flag_and_its_value_may_be_two_words_and_the_last_one_counts() -> None:
    assert options("--http-port", "1", "--http-port", "2").http.port == 2


def test_repositories_are_repeatable_under_both_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = options(f"--model-repository={tmp_path / 'a'}", f"--model-store={tmp_path / 'b'}")
    assert found.repository.paths == (tmp_path / "a", tmp_path / "b")


def test_models_to_load_are_repeatable_in_explicit_mode() -> None:
    found = options("--model-control-mode=explicit", "--load-model=a", "--load-model=b")
    assert found.repository.load_models == ("a", "b")


def test_backend_settings_are_by_backend_or_for_all() -> None:
    found = options(
        "--backend-config=onnxruntime,default-max-batch-size=8",
        "--backend-config=x=y=z",
        "--backend-config=onnxruntime,a=b",
    )
    assert found.repository.backend_config == {
        "onnxruntime": {"default-max-batch-size": "8", "a": "b"},
        "": {"x": "y=z"},
    }


def test_tls_takes_its_files(tmp_path: Path) -> None:
    cert, key, root = (tmp_path / name for name in ("c.pem", "k.pem", "r.pem"))
    for file in (cert, key, root):
        file.write_text("x")
    files = (f"--grpc-server-cert={cert}", f"--grpc-server-key={key}")
    assert options("--grpc-use-ssl=true", *files).grpc.tls == TlsOptions(cert, key)
    mutual = options("--grpc-use-ssl-mutual=1", *files, f"--grpc-root-cert={root}")
    assert mutual.grpc == GrpcOptions(tls=TlsOptions(cert, key, root, mutual=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--load-model=a"], "Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
        (["--model-control-mode=explicit", "--load-model=*", "--load-model=a"], "--load-model=\\* stands alone"),
        (["--model-repository=s3://bucket/x"], "repositories behind s3:// are not served yet"),
        (["--model-repository=/nowhere/at/all"], "--model-repository=/nowhere/at/all: no such folder"),
        (["--backend-config=onnxruntime"], "expected BACKEND,KEY=VALUE or KEY=VALUE"),
        (["--backend-config=,a=b"], "expected BACKEND,KEY=VALUE or KEY=VALUE"),
        (["--grpc-use-ssl=true"], "--grpc-use-ssl needs --grpc-server-cert=FILE"),
        (["--grpc-use-ssl=true", "--grpc-server-cert=/nowhere"], "--grpc-server-cert=/nowhere: no such file"),
        (["--disable-auto-complete-config=true", "--strict-model-config=false"], "contradict each other"),
    ],
)
def test_a_command_line_that_cannot_be_honoured_says_why(arguments: list[str], message: str) -> None:
    with pytest.raises(FlagError, match=message):
        options(*arguments)


def test_mutual_tls_without_the_clients_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    files = (f"--grpc-server-cert={tmp_path / 'f'}", f"--grpc-server-key={tmp_path / 'f'}")
    with pytest.raises(FlagError, match="--grpc-use-ssl-mutual needs --grpc-root-cert=FILE"):
        options("--grpc-use-ssl-mutual=true", *files)


@pytest.mark.parametrize(
    "argument",
    [
        "--grpc-restricted-protocol=model-repository:key=value",
        "--http-restricted-api=model-repository:key=value",
        "--rate-limit=execution_count",
        "--cache-config=local,size=1048576",
        "--response-cache-byte-size=1048576",
        "--trace-config=triton,file=/tmp/trace.json",
        "--trace-config=mode=opentelemetry",
        "--trace-config=level=TIMESTAMPS",
        "--trace-file=trace.json",
        "--trace-level=TIMESTAMPS",
        "--allow-sagemaker=true",
        "--allow-vertex-ai=true",
        "--allow-client-shm=true",
        "--model-namespacing=true",
        "--model-load-gpu-limit=0:0.8",
    ],
)
def test_a_flag_that_would_change_what_a_client_gets_is_refused_by_name(argument: str) -> None:
    with pytest.raises(FlagError) as raised:
        options(argument)
    assert str(raised.value).startswith(f"{argument} is refused: ")


@pytest.mark.parametrize(
    "argument",
    [
        "--rate-limit=off",
        "--response-cache-byte-size=0",
        "--trace-config=level=OFF",
        "--trace-config=rate=100",
        "--trace-config=count=-1",
        "--trace-level=OFF",
        "--allow-sagemaker=false",
        "--allow-vertex-ai=0",
        "--allow-client-shm=false",
        "--model-namespacing=false",
    ],
)
def test_a_feature_that_is_switched_off_is_no_reason_to_refuse(argument: str) -> None:
    assert options(argument) == ServerOptions()


@pytest.mark.parametrize("other", [o for o in OTHERS if o.harmless is None], ids=lambda o: o.flag.name)
def test_a_flag_without_meaning_is_accepted_and_named(other: Any) -> None:
    values = parse(f"--{other.flag.name}=1")
    assert server_options(values) == ServerOptions()
    assert ignored(values) == [f"--{other.flag.name} ({other.why})"]


def test_certificates_without_tls_are_named() -> None:
    assert ignored(parse("--grpc-server-cert=x")) == ["--grpc-server-cert (TLS is off without --grpc-use-ssl)"]


def test_nothing_is_named_when_nothing_is_ignored() -> None:
    assert ignored(parse("--http-port=1", "--rate-limit=off")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grpc-prot=1"], "No such option '--grpc-prot'"),
        (["--exit-on-error=perhaps"], "'perhaps' is not a valid boolean"),
        (["--http-port=70000"], "70000 is not in the range 0<=x<=65535"),
        (["--http-port=x"], "'x' is not a valid integer"),
        (["--model-control-mode=always"], "'always' is not one of 'none', 'poll', 'explicit'"),
        (["--log-verbose=loud"], "'loud' is no level"),
    ],
)
def test_a_wrong_flag_or_value_is_a_usage_error(arguments: list[str], message: str) -> None:
    with pytest.raises(click.UsageError) as raised:
        parse(*arguments)
    assert message in raised.value.format_message()


def test_an_unknown_flag_gets_near_names() -> None:
    result = CliRunner().invoke(serve_command.command, ["--grpc-prot=1"])
    assert result.exit_code == 2
    assert "--grpc-port" in result.output


def test_the_help_names_every_flag() -> None:
    text = CliRunner().invoke(serve_command.command, ["--help"]).output
    for flag in (*HONOURED, *(other.flag for other in OTHERS)):
        assert f"--{flag.name}" in text
