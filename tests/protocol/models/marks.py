"""Leaves a file behind for each step of its life: the configuration's parameter `folder` says where."""

import json
import os

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = json.loads(args["model_config"])["parameters"]["folder"]["string_value"]
        self.mark("initialized")

    def mark(self, what):
        with open(os.path.join(self.folder, what), "a") as file:
            file.write("x")

    def execute(self, requests):
        self.mark("executed")
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
            for r in requests
        ]

    def finalize(self):
        self.mark("finalized")
