"""Calls other models (BLS): the request parameter `call` names one, `how` says in which way."""

import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils


def failed(error):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"called model said: {error.message()}", error.code()))


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        parameters = json.loads(request.parameters())
        how = parameters["how"]
        values = pb_utils.get_input_tensor_by_name(request, "IN")
        if how == "sync":
            response = self.call(parameters["call"], values).exec()
        elif how == "async":
            response = await self.call(parameters["call"], values).async_exec()
        elif how == "many":
            calls = [self.call(parameters["call"], values).async_exec() for _ in range(8)]
            responses = await asyncio.gather(*calls)
            for each in responses:
                if each.has_error():
                    return failed(each.error())
            total = sum(pb_utils.get_output_tensor_by_name(each, "OUT").as_numpy() for each in responses)
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total.astype(np.float32))])
        else:
            raise ValueError(f"how? {how}")
        if response.has_error():
            return failed(response.error())
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy())]
        )

    def call(self, model, values):
        return pb_utils.InferenceRequest(
            model_name=model,
            requested_output_names=["OUT"],
            inputs=[pb_utils.Tensor("IN", values.as_numpy())],
        )
