"""Logs, and keeps metrics of its own."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily(
            name="requests_of_reports", description="Requests that the model saw", kind=pb_utils.MetricFamily.COUNTER
        )
        self.metric = self.family.Metric(labels={"model": "reports", "kind": "seen"})
        pb_utils.Logger.log_info("reports is starting")

    def execute(self, requests):
        self.metric.increment(len(requests))
        pb_utils.Logger.log_warn("reports has run")
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
            for r in requests
        ]
