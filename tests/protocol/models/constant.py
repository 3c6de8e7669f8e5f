"""Returns always the same: the number in its configuration's parameter `value`, or in this line."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

VALUE = 1


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.value = int(parameters["value"]["string_value"]) if "value" in parameters else VALUE

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.value], np.int32))]) for _ in requests
        ]
