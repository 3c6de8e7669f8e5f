"""The model's configuration as `initialize` and `auto_complete_config` see it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Config = dict[str, Any]


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> Config | None:
    """The entry of an input in a configuration, None when there is no such input."""
    return next((entry for entry in model_config.get("input", ()) if entry["name"] == name), None)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> Config | None:
    """The entry of an output in a configuration, None when there is no such output."""
    return next((entry for entry in model_config.get("output", ()) if entry["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Is the model decoupled?"""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


class ModelConfig:
    """What `auto_complete_config` is given and returns. Only what the configuration leaves open can be set; errors are ValueError."""

    def __init__(self, model_config: str) -> None:
        """`model_config` is the configuration as JSON text."""
        self._model_config: Config = json.loads(model_config)

    def as_dict(self) -> Config:
        """The configuration so far; to be read only."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Raises ValueError when the configuration has a larger one."""
        configured = self._model_config["max_batch_size"]
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function for model "
                f"'{self._name()}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Raises ValueError when the configuration has another scheduler."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but auto-complete-config function for model "
                    f"'{self._name()}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Mapping[str, Any]) -> None:
        """Add {"name", "data_type", "dims", "optional"}, or complete an input of that name.

        Raises ValueError for another property, a missing one, or one that contradicts the configuration.
        """
        self._add(
            "input", input, ("name", "data_type", "dims", "optional"), "'name', 'data_type', 'dims' and 'optional'"
        )

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add {"name", "data_type", "dims"}, or complete an output of that name. Raises ValueError as add_input does."""
        self._add("output", output, ("name", "data_type", "dims"), "'name', 'data_type' and 'dims'")

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Set {"decoupled": bool}. Raises ValueError for another property, or when the configuration says otherwise."""
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name()}' "
                "contains property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" in transaction_policy_dict:
            decoupled = transaction_policy_dict["decoupled"]
            if policy.get("decoupled", decoupled) != decoupled:
                raise ValueError(
                    f"trying to change decoupled property in auto-complete-config for model '{self._name()}', "
                    f"which is already set to '{policy['decoupled']}'."
                )
            policy["decoupled"] = decoupled

    def _name(self) -> str:
        return str(self._model_config["name"])

    def _add(self, kind: str, tensor: Mapping[str, Any], valid: tuple[str, ...], shown: str) -> None:
        where = f"in auto-complete-config function for model '{self._name()}'"
        if any(key not in valid for key in tensor):
            raise ValueError(f"{kind} '{tensor.get('name', '')}' {where} contains property other than {shown}.")
        if "name" not in tensor:
            raise ValueError(f"{kind} {where} is missing 'name' property.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{kind} '{tensor['name']}' {where} is missing '{key}' property.")
        for entry in self._model_config[kind]:
            if entry["name"] == tensor["name"]:
                self._complete(kind, entry, tensor)
                return
        self._model_config[kind].append(dict(tensor))

    def _complete(self, kind: str, entry: Config, tensor: Mapping[str, Any]) -> None:
        name = tensor["name"]
        if entry["data_type"] not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name()}', configuration expects datatype {entry['data_type']} "
                f"for {kind} '{name}', model provides {tensor['data_type']}"
            )
        if entry["dims"] and list(entry["dims"]) != list(tensor["dims"]):
            raise ValueError(
                f"model '{self._name()}', tensor '{name}': the model expects dims {list(tensor['dims'])} "
                f"but the model configuration specifies dims {list(entry['dims'])}"
            )
        if entry.get("optional", False) and tensor.get("optional", True) is False:
            raise ValueError(
                f"model '{self._name()}', tensor '{name}': the model expects optional {tensor['optional']} "
                f"but the model configuration specifies optional {entry['optional']}"
            )
        entry.update(tensor)
