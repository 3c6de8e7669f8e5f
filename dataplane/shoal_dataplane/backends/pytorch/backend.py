"""The PyTorch backend: TorchScript (model.pt), torch.export (model.pt2) and AOTInductor packages (model.pt2).

What a file is, is told from the file. Parameters, naming of inputs and outputs and error texts are those of Triton's PyTorch backend;
unlike there, a torch.export file completes the configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.arrays.signature import complete_config, default_max_batch_size, is_complete
from shoal_dataplane.backends.base import Backend, Instance, InstanceSpec, ModelContext
from shoal_dataplane.backends.model_files import find_model_file
from shoal_dataplane.backends.pytorch.aoti import AotiProgram, load_aoti, probe_shapes
from shoal_dataplane.backends.pytorch.archive import ArchiveKind, archive_kind
from shoal_dataplane.backends.pytorch.binding import Binding
from shoal_dataplane.backends.pytorch.instance import TorchInstance
from shoal_dataplane.backends.pytorch.program import Program
from shoal_dataplane.backends.pytorch.script import describe_script, load_script
from shoal_dataplane.backends.pytorch.settings import TorchSettings, apply_process_settings, settings_of
from shoal_dataplane.backends.sharing import SharedModels, load_key
from shoal_dataplane.core.errors import ServingError, invalid


class TorchBackend:
    """Loads PyTorch files. Instances on one device share a program that has no state of its own."""

    default_filename = "model.pt"
    default_execution = "auto"

    def __init__(self) -> None:
        self._shared: SharedModels[Program] = SharedModels()

    def auto_complete(self, config: mc.ModelConfig, version_dir: Path, backend_options: dict[str, str]) -> None:
        """Fill max_batch_size, inputs, outputs and dynamic_batching from a torch.export file.

        Raises ServingError(INVALID_ARGUMENT) for the other kinds, which hold neither datatypes nor shapes, when the configuration
        does not name inputs and outputs: it says what to write.
        """
        if is_complete(config):
            return
        path = self._file(config, version_dir)
        kind = archive_kind(config.name, path)
        if kind is not ArchiveKind.EXPORT:
            raise _incomplete(config, kind, path)
        from shoal_dataplane.backends.pytorch.export import load_export

        default_batch = default_max_batch_size(config, backend_options)
        complete_config(config, load_export(config.name, path, None).signature, default_batch)

    def load(self, context: ModelContext, instance: InstanceSpec) -> Instance:
        """Load a program, or take the one that another instance has, and check the configuration against it."""
        config = context.config
        path = self._file(config, context.version_dir)
        kind = archive_kind(config.name, path)
        settings = settings_of(config)
        apply_process_settings(config.name, settings)
        place = _device(config, instance)

        def load() -> Program:
            return _load(config, kind, path, place, settings)

        if settings.weight_sharing is False:
            program = load()
        else:
            forced = settings.weight_sharing is True
            program = self._shared.get(
                load_key(config, path, instance), load, lambda loaded: forced or not loaded.stateful
            )
        device = place or torch.device("cpu")
        binding = Binding(config, program, device)
        if isinstance(program, AotiProgram):
            probe_shapes(config, program, binding)
        return TorchInstance(context, program, binding, settings, device)

    def _file(self, config: mc.ModelConfig, version_dir: Path) -> Path:
        return find_model_file(config, version_dir, (self.default_filename, "model.pt2"))


def _load(
    config: mc.ModelConfig, kind: ArchiveKind, path: Path, place: torch.device | None, settings: TorchSettings
) -> Program:
    if kind is ArchiveKind.TORCHSCRIPT:
        return load_script(config.name, path, place, settings)
    if kind is ArchiveKind.AOT_INDUCTOR:
        return load_aoti(config.name, path, place)
    # Imported when needed: torch.export's files bring sympy and the exporter with them, 10 s at worst and 100 MB.
    from shoal_dataplane.backends.pytorch.export import load_export

    return load_export(config.name, path, place)


def _device(config: mc.ModelConfig, instance: InstanceSpec) -> torch.device | None:
    """The device of an instance; None for KIND_MODEL, whose model has its own and takes its inputs on the CPU (as in Triton)."""
    if instance.kind == "MODEL":
        return None
    if instance.kind != "GPU":
        return torch.device("cpu")
    found = torch.cuda.device_count()
    if instance.device_id >= found:
        raise invalid(
            f"model '{config.name}': instance '{instance.name}' is on GPU {instance.device_id}, torch {torch.__version__} finds {found} "
            "CUDA devices here; set instance_group to KIND_CPU, or run on a machine with that GPU and a CUDA build of torch"
        )
    return torch.device("cuda", instance.device_id)


def _incomplete(config: mc.ModelConfig, kind: ArchiveKind, path: Path) -> ServingError:
    """What to write, with the names that the file does hold."""
    if kind is ArchiveKind.TORCHSCRIPT:
        signature = describe_script(config.name, path)
    else:
        program = load_aoti(config.name, path, None)
        signature = f"({', '.join(program.input_names)}) -> ({', '.join(program.output_names)})"
    return invalid(
        f"failed to auto-complete the configuration of model '{config.name}': {'a' if kind is ArchiveKind.TORCHSCRIPT else 'an'} "
        f"{kind.value} file holds neither datatypes nor shapes, so config.pbtxt must say them, such as: max_batch_size: 8 "
        'input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ] '
        f'output [ {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1000 ] }} ]. The model in {path.name} is {signature}'
    )


BACKEND: Final[Backend] = TorchBackend()
