"""Text in, embedding out: business logic around a model, written as for Triton's Python backend.

The scheduler hands over a batch of requests. Their texts are tokenised together, and one call goes to `minilm`, which runs in
another process and language: the tensors between them are passed in shared memory.
"""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

# Lengths are padded up to a multiple of it, so that sentences of several callers have one shape and can share a batch of `minilm`.
LENGTH_STEP = 32


class TritonPythonModel:
    def initialize(self, args):
        self.tokenizer = Tokenizer.from_file(str(Path(__file__).with_name("tokenizer.json")))
        self.tokenizer.enable_truncation(max_length=256)
        self.tokenizer.enable_padding(pad_to_multiple_of=LENGTH_STEP)

    def execute(self, requests):
        texts, counts = [], []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().ravel()
            texts += [element.decode("utf-8", errors="replace") for element in text]
            counts.append(len(text))
        encoded = self.tokenizer.encode_batch(texts)
        call = pb_utils.InferenceRequest(
            model_name="minilm",
            requested_output_names=["embedding"],
            inputs=[
                pb_utils.Tensor("input_ids", np.array([e.ids for e in encoded], dtype=np.int64)),
                pb_utils.Tensor("attention_mask", np.array([e.attention_mask for e in encoded], dtype=np.int64)),
            ],
        )
        answer = call.exec()
        if answer.has_error():
            error = pb_utils.TritonError(answer.error().message())
            return [pb_utils.InferenceResponse(error=error) for _ in requests]
        embeddings = pb_utils.get_output_tensor_by_name(answer, "embedding").as_numpy()
        rows = np.split(embeddings, np.cumsum(counts)[:-1])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("embedding", part)]) for part in rows]
