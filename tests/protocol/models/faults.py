"""Does what its input says: every way in which a model's execute can go wrong, and some in which it cannot."""

import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def out(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


class TritonPythonModel:
    def execute(self, requests):
        codes = [pb_utils.get_input_tensor_by_name(r, "CODE").as_numpy().ravel()[0].decode() for r in requests]
        whole = getattr(self, "batch_" + codes[0], None)
        if whole is not None:
            return whole()
        return [self.answer(code) for code in codes]

    def answer(self, code):
        error = pb_utils.TritonError
        if code.startswith("code_"):
            return pb_utils.InferenceResponse(error=error("coded " + code, getattr(error, code[5:])))
        if code == "error":
            return pb_utils.InferenceResponse(error=error("plain error"))
        if code == "error_and_output":
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", zeros(1, 4))], error=error("with an output"))
        if code == "parameters":
            values = {"text": "x", "number": 3, "yes": True, "half": 0.5}
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", zeros(1, 4))], parameters=values)
        if code == "noncontiguous":
            return out(np.arange(8, dtype=np.float32).reshape(4, 2).T[:1])
        arrays = {
            "dtype": zeros(1, 4, dtype=np.int32),
            "shape": zeros(1, 5),
            "rank": zeros(4),
            "rows": zeros(3, 4),
            "nan": np.full((1, 4), np.nan, np.float32),
        }
        if code in arrays:
            return out(arrays[code])
        if code == "missing":
            return pb_utils.InferenceResponse([])
        if code == "unknown_output":
            return pb_utils.InferenceResponse([pb_utils.Tensor("NOPE", zeros(1, 4))])
        if code == "same_output_twice":
            return pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", zeros(1, 4)), pb_utils.Tensor("OUT", zeros(1, 4) + 1)]
            )
        return out(zeros(1, 4))

    # What concerns the whole batch.

    def batch_raise(self):
        raise ValueError("boom happened")

    def batch_raise_model_exception(self):
        raise pb_utils.TritonModelException("model exception")

    def batch_raise_triton_error(self):
        raise pb_utils.TritonError("raised triton error")

    def batch_system_exit(self):
        raise SystemExit(4)

    def batch_keyboard_interrupt(self):
        raise KeyboardInterrupt

    def batch_recursion(self):
        return self.batch_recursion()

    def batch_none(self):
        return None

    def batch_too_few(self):
        return []

    def batch_too_many(self):
        return [out(zeros(1, 4)), out(zeros(1, 4))]

    def batch_no_list(self):
        return out(zeros(1, 4))

    def batch_no_response(self):
        return [5]

    def batch_none_in_list(self):
        return [None]

    def batch_tensor_of_list(self):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", [1, 2, 3, 4])])]

    def batch_print(self):
        print("a model may print")
        os.write(1, b"and write to its standard output\n")
        return [out(zeros(1, 4))]

    def batch_exit(self):
        os._exit(3)

    def batch_abort(self):
        os.abort()

    def batch_hang(self):
        time.sleep(3600)

    def batch_memory(self):
        kept = [np.ones(1 << 24, np.uint8) for _ in range(64)]  # 1 GiB
        time.sleep(30)
        return [out(zeros(len(kept), 4))]
