"""Returns its inputs: IN as OUT, IN0 as OUT0 and so on. Optional inputs that are absent make no output."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(tensor.name().replace("IN", "OUT"), tensor.as_numpy()) for tensor in request.inputs()]
            )
            for request in requests
        ]
