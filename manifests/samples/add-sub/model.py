"""The smallest model: the sum and the difference of two vectors. Serve it with `shoal serve manifests/samples/add-sub`."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "a").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "b").as_numpy()
            outputs = [pb_utils.Tensor("sum", a + b), pb_utils.Tensor("difference", a - b)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
