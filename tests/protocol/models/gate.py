"""Runs for as long as the caller says: the request parameter `gate` names a file, which the model waits for. `GATE.entered` says that it
has begun. Returns its input; without the parameter at once. An output ORDER, where one is configured, counts the executions."""

import json
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.ordered = any(output["name"] == "ORDER" for output in json.loads(args["model_config"])["output"])
        self.executions = 0

    def execute(self, requests):
        responses = []
        self.executions += 1
        for request in requests:
            gate = json.loads(request.parameters() or "{}").get("gate")
            if gate:
                with open(gate + ".entered", "w") as file:
                    file.write("")
                deadline = time.monotonic() + 60
                while not os.path.exists(gate) and time.monotonic() < deadline:
                    time.sleep(0.002)
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            outputs = [pb_utils.Tensor("OUT", values)]
            if self.ordered:
                outputs.append(pb_utils.Tensor("ORDER", np.full(values.shape, self.executions, np.int32)))
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
