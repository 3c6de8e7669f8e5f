"""The Python backend: model.py files written for Triton, unchanged (triton.md F3 to F5)."""

from __future__ import annotations

import json
from pathlib import Path

from google.protobuf import json_format

from shoal_api.protocol import POOL
from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends import parameters
from shoal_dataplane.backends.base import Instance, InstanceSpec, ModelContext
from shoal_dataplane.backends.model_files import find_model_file
from shoal_dataplane.backends.python.complete import complete, defines_auto_complete
from shoal_dataplane.backends.python.instance import PythonInstance
from shoal_dataplane.backends.python.loader import forget, load_class
from shoal_dataplane.codec.proto_json import to_json
from shoal_dataplane.core.errors import invalid, unimplemented

EXECUTION_ENV = "EXECUTION_ENV_PATH"
FORCE_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"


class PythonBackend:
    """Loads `TritonPythonModel` from model.py. Runs in a process of its own unless SHOAL_EXECUTION says otherwise."""

    default_filename = "model.py"
    default_execution = "process"

    def auto_complete(self, config: mc.ModelConfig, version_dir: Path, backend_options: dict[str, str]) -> None:
        """Call the model's static `auto_complete_config`, in a process that ends after it, and take what it set.

        Raises ServingError: INVALID_ARGUMENT for a contradiction, INTERNAL for what the model raises, or when it takes too long.
        """
        check_parameters(config)
        path = find_model_file(config, version_dir, (self.default_filename,))
        if not defines_auto_complete(path):
            return
        completed = complete(config.name, path, json.dumps(to_json(config)), config)
        try:
            found = json_format.ParseDict(
                {key: completed[key] for key in COMPLETED if key in completed}, mc.ModelConfig(), descriptor_pool=POOL
            )
        except json_format.ParseError as error:
            raise invalid(f"auto_complete_config of model '{config.name}' set something invalid: {error}") from None
        for field in ("input", "output"):
            del getattr(config, field)[:]
        config.ClearField("dynamic_batching")
        config.ClearField("model_transaction_policy")
        config.MergeFrom(found)

    def load(self, context: ModelContext, instance: InstanceSpec) -> Instance:
        """Import model.py and call `initialize`. Raises ServingError with the exception and where it was raised."""
        check_parameters(context.config)
        path = find_model_file(context.config, context.version_dir, (self.default_filename,))
        model_class = load_class(path)
        try:
            return PythonInstance(context, instance, model_class)
        except BaseException:
            forget(model_class)
            raise


COMPLETED = ("max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy")
"""The fields that auto_complete_config may set."""


def check_parameters(config: mc.ModelConfig) -> None:
    """Refuse what Triton's Python backend knows and this one does not. Raises ServingError."""
    environment = parameters.text(config, EXECUTION_ENV)
    if environment:
        raise unimplemented(
            f"model '{config.name}': parameter {EXECUTION_ENV} ('{environment}') names a packed Python environment, which is not "
            "supported; install the model's packages in the environment that the server runs in"
        )
    force_cpu = parameters.text(config, FORCE_CPU)
    if force_cpu is not None and force_cpu.lower() not in ("yes", "no"):
        raise invalid(f"Incorrect value for {FORCE_CPU}: '{force_cpu}'")
    if config.model_transaction_policy.decoupled:
        raise unimplemented(f"model '{config.name}' is decoupled, which is not supported yet")


BACKEND = PythonBackend()
