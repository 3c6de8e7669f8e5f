"""Text in, text and some other tensors out: for the generate extension."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            scale = pb_utils.get_input_tensor_by_name(request, "scale")
            upper = np.array([element.upper() for element in text.ravel()], dtype=object).reshape(text.shape)
            outputs = {
                "text_output": upper,
                "parameters_seen": np.array([request.parameters().encode()], dtype=object),
                "numbers": np.array([1, 2, 3], np.int32),
                "scale_seen": np.array([0.1 if scale is None else scale.as_numpy().ravel()[0]], np.float32),
                "flag": np.array([True]),
                "shape_seen": np.array(text.shape, np.int64),
            }
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])
            )
        return responses
