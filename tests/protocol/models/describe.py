"""Returns, as JSON, what a model can see of its request and of its own surroundings."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.args = {key: value for key, value in args.items() if key != "model_config"}
        self.config = json.loads(args["model_config"])

    def execute(self, requests):
        responses = []
        for request in requests:
            seen = {
                "parameters": json.loads(request.parameters() or "{}"),
                "id": request.request_id(),
                "correlation_id": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
                "requested": sorted(request.requested_output_names()),
                "inputs": sorted(tensor.name() for tensor in request.inputs()),
                "trace": request.trace().get_context(),
                "args": self.args,
                "config_name": self.config["name"],
                "parameter": self.config["parameters"].get("note", {}).get("string_value"),
            }
            text = np.array([json.dumps(seen).encode()], dtype=object)
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", text), pb_utils.Tensor("UNUSED", np.zeros(1, np.int32))]
                )
            )
        return responses
