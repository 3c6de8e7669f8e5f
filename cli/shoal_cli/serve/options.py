"""From the values of the flags to the options of a data plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal_cli.serve.other_flags import FlagError, refuse
from shoal_dataplane.options import (
    ControlMode,
    GrpcOptions,
    HttpOptions,
    MetricsOptions,
    RepositoryOptions,
    ServerOptions,
    TlsOptions,
)

Values = Mapping[str, Any]
"""By `Flag.key`; None, an empty tuple or no entry is a flag that was not given."""


def server_options(values: Values, repositories: Sequence[Path] = ()) -> ServerOptions:
    """Return the options; `repositories` come before those of --model-repository.

    Raises FlagError for values that contradict each other, name files that are not there, or ask for what is not served.
    """
    refuse(values)
    http = _http(values)
    return ServerOptions(
        repository=_repository(values, repositories),
        grpc=_grpc(values),
        http=http,
        metrics=_metrics(values, http.address),
        log_format="json" if values.get("log_format") == "json" else "text",
        **_given(
            values,
            server_id="id",
            exit_on_error="exit_on_error",
            strict_readiness="strict_readiness",
            exit_timeout_seconds="exit_timeout_secs",
            lame_duck_seconds="lame_duck_secs",
            log_verbose="log_verbose",
        ),
    )


def _given(values: Values, **fields: str) -> dict[str, Any]:
    """Return the fields whose flag was given; the others keep the option's own default."""
    return {field: values[key] for field, key in fields.items() if values.get(key) is not None}


def _repository(values: Values, repositories: Sequence[Path]) -> RepositoryOptions:
    mode = ControlMode(values.get("model_control_mode") or "none")
    load = tuple(values.get("load_model") or ())
    if load and mode is not ControlMode.EXPLICIT:
        raise FlagError("Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if "*" in load and len(load) > 1:
        raise FlagError("--load-model=* stands alone: it names every model already")
    disabled, strict = values.get("disable_auto_complete_config"), values.get("strict_model_config")
    if disabled is not None and strict is not None and disabled != strict:
        raise FlagError("--disable-auto-complete-config and --strict-model-config (its old name) contradict each other")
    return RepositoryOptions(
        paths=(*repositories, *(_repository_path(text) for text in values.get("model_repository") or ())),
        control_mode=mode,
        load_models=load,
        auto_complete=not (disabled or strict),
        backend_config=_backend_config(values.get("backend_config") or ()),
        **_given(
            values,
            poll_seconds="repository_poll_secs",
            config_name="model_config_name",
            load_threads="model_load_thread_count",
            load_retries="model_load_retry_count",
        ),
    )


def _repository_path(text: str) -> Path:
    scheme, colon, _ = text.partition("://")
    if colon:
        raise FlagError(
            f"--model-repository={text}: repositories behind {scheme}:// are not served yet; expected a folder"
        )
    path = Path(text)
    if not path.is_dir():
        raise FlagError(f"--model-repository={text}: {'not a folder' if path.exists() else 'no such folder'}")
    return path


def _backend_config(settings: Sequence[str]) -> dict[str, dict[str, str]]:
    config: dict[str, dict[str, str]] = {}
    for setting in settings:
        backend, comma, assignment = setting.partition(",")
        if not comma:
            backend, assignment = "", setting
        key, equals, value = assignment.partition("=")
        if not equals or not key or (comma and not backend):
            raise FlagError(f"--backend-config={setting}: expected BACKEND,KEY=VALUE or KEY=VALUE")
        config.setdefault(backend, {})[key] = value
    return config


def _http(values: Values) -> HttpOptions:
    return HttpOptions(
        **_given(
            values,
            enabled="allow_http",
            address="http_address",
            port="http_port",
            reuse_port="reuse_http_port",
            header_forward_pattern="http_header_forward_pattern",
            max_input_bytes="http_max_input_size",
        )
    )


def _metrics(values: Values, http_address: str) -> MetricsOptions:
    given = _given(
        values,
        enabled="allow_metrics",
        address="metrics_address",
        port="metrics_port",
        interval_ms="metrics_interval_ms",
        gpu="allow_gpu_metrics",
        cpu="allow_cpu_metrics",
    )
    return MetricsOptions(**{"address": http_address, **given})


def _grpc(values: Values) -> GrpcOptions:
    return GrpcOptions(
        tls=_tls(values),
        **_given(
            values,
            enabled="allow_grpc",
            address="grpc_address",
            port="grpc_port",
            reuse_port="reuse_grpc_port",
            header_forward_pattern="grpc_header_forward_pattern",
            keepalive_time_ms="grpc_keepalive_time",
            keepalive_timeout_ms="grpc_keepalive_timeout",
            keepalive_permit_without_calls="grpc_keepalive_permit_without_calls",
            max_pings_without_data="grpc_http2_max_pings_without_data",
            min_recv_ping_interval_ms="grpc_http2_min_recv_ping_interval_without_data",
            max_ping_strikes="grpc_http2_max_ping_strikes",
            max_connection_age_ms="grpc_max_connection_age",
            max_connection_age_grace_ms="grpc_max_connection_age_grace",
            response_compression="grpc_infer_response_compression_level",
            front="grpc_front",
        ),
    )


def _tls(values: Values) -> TlsOptions | None:
    mutual = bool(values.get("grpc_use_ssl_mutual"))
    files = {key: values.get(key) for key in ("grpc_server_cert", "grpc_server_key", "grpc_root_cert")}
    if not mutual and not values.get("grpc_use_ssl"):
        return None
    paths: dict[str, Path | None] = {}
    for key, text in files.items():
        name = "--" + key.replace("_", "-")
        if not text:
            if key != "grpc_root_cert" or mutual:
                raise FlagError(f"{'--grpc-use-ssl-mutual' if mutual else '--grpc-use-ssl'} needs {name}=FILE")
            paths[key] = None
        elif not Path(text).is_file():
            raise FlagError(f"{name}={text}: no such file")
        else:
            paths[key] = Path(text)
    cert, key_file = paths["grpc_server_cert"], paths["grpc_server_key"]
    assert cert is not None
    assert key_file is not None
    return TlsOptions(cert, key_file, paths["grpc_root_cert"], mutual)
