"""Runs until its caller has gone. The request parameter `note` names a file: made empty at the start, it holds "cancelled" at the end."""

import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            note = json.loads(request.parameters())["note"]
            with open(note, "w") as file:
                file.write("")
            deadline = time.monotonic() + 20
            while not request.is_cancelled() and time.monotonic() < deadline:
                time.sleep(0.005)
            with open(note, "w") as file:
                file.write("cancelled" if request.is_cancelled() else "in vain")
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]))
        return responses
