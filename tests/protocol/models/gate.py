"""Runs for as long as the caller says: the request parameter `gate` names a file, which the model waits for. `GATE.entered` says that it
has begun. Returns its input; without the parameter at once."""

import json
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            gate = json.loads(request.parameters() or "{}").get("gate")
            if gate:
                with open(gate + ".entered", "w") as file:
                    file.write("")
                deadline = time.monotonic() + 60
                while not os.path.exists(gate) and time.monotonic() < deadline:
                    time.sleep(0.002)
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]))
        return responses
