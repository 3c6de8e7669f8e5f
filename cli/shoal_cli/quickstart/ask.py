"""The quickstart's client: tritonclient, as anybody would use it, over gRPC."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc as triton

Array = np.ndarray[Any, Any]

TIMEOUT_SECONDS = 60.0


class AnswerError(RuntimeError):
    """A model did not answer."""


class Class(NamedTuple):
    """One answer of the classifier."""

    label: str
    probability: float


class Burst(NamedTuple):
    """How requests that were sent together ran. `batches` maps a batch's size to how many of that size ran."""

    requests: int
    executions: int
    batches: dict[int, int]
    seconds: float


class Client:
    """Asks the models of manifests/quickstart."""

    def __init__(self, address: str) -> None:
        self._client = triton.InferenceServerClient(address)

    def embed(self, sentences: Sequence[str]) -> Array:
        """Sentences to embeddings, FP32 [len, 384], in one request."""
        text = triton.InferInput("text", [len(sentences), 1], "BYTES")
        text.set_data_from_numpy(np.array([[s.encode()] for s in sentences], dtype=object))
        embeddings: Array = self._infer("embed", [text]).as_numpy("embedding")
        return embeddings

    def classify(self, picture: Path, count: int) -> list[Class]:
        """The `count` likeliest classes of a picture; the server sends their labels."""
        from PIL import Image, ImageOps

        pixels = np.asarray(ImageOps.fit(Image.open(picture).convert("RGB"), (224, 224), Image.Resampling.BICUBIC))
        image = triton.InferInput("image", [1, 224, 224, 3], "UINT8")
        image.set_data_from_numpy(pixels[np.newaxis])
        wanted = triton.InferRequestedOutput("probabilities", class_count=count)
        answer = self._infer("classifier", [image], [wanted]).as_numpy("probabilities")
        rows = (element.decode().split(":", 2) for element in answer.ravel())
        return [Class(label, float(value)) for value, _, label in rows]

    def hidden_mean(self, model: str, input_ids: Array, attention_mask: Array) -> Array:
        """The embedding that a model which returns hidden states stands for: their mean over the tokens, normalised."""
        names = [tensor["name"] for tensor in self._client.get_model_metadata(model, as_json=True)["inputs"]]
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": np.zeros_like(input_ids)}
        states = self._infer(model, _tensors({name: given[name] for name in names})).as_numpy("last_hidden_state")
        mask = attention_mask[..., np.newaxis]
        mean = (states * mask).sum(1) / mask.sum(1)
        normalised: Array = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return normalised

    def embed_ids(self, input_ids: Array, attention_mask: Array) -> Array:
        """Token ids to embeddings, by `minilm` itself."""
        inputs = _tensors({"input_ids": input_ids, "attention_mask": attention_mask})
        embeddings: Array = self._infer("minilm", inputs).as_numpy("embedding")
        return embeddings

    def burst(self, sentences: Sequence[str], *, together: bool) -> Burst:
        """Send each sentence to `embed` in a request of its own, all together or one after the other; count how they ran."""
        before = self._statistics("embed")
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        started = time.perf_counter()
        for sentence in sentences:
            text = triton.InferInput("text", [1, 1], "BYTES")
            text.set_data_from_numpy(np.array([[sentence.encode()]], dtype=object))
            self._client.async_infer(
                "embed", [text], lambda result, error: answers.put(error), client_timeout=TIMEOUT_SECONDS
            )
            if not together:
                _raise(answers.get(timeout=TIMEOUT_SECONDS))
        if together:
            for _ in sentences:
                _raise(answers.get(timeout=TIMEOUT_SECONDS))
        seconds = time.perf_counter() - started
        after = self._statistics("embed")
        grown = {size: count - before.get(size, 0) for size, count in after.items() if count > before.get(size, 0)}
        return Burst(len(sentences), sum(grown.values()), grown, seconds)

    def _infer(self, model: str, inputs: list[Any], outputs: list[Any] | None = None) -> Any:
        try:
            return self._client.infer(model, inputs, outputs=outputs, client_timeout=TIMEOUT_SECONDS)
        except triton.InferenceServerException as error:
            raise AnswerError(f"model '{model}': {error}") from error

    def _statistics(self, model: str) -> dict[int, int]:
        """How many batches of each size have run."""
        found = self._client.get_inference_statistics(model)
        return {int(batch.batch_size): int(batch.compute_infer.count) for batch in found.model_stats[0].batch_stats}

    def close(self) -> None:
        self._client.close()


def _tensors(arrays: dict[str, Array]) -> list[Any]:
    tensors = []
    for name, values in arrays.items():
        tensor = triton.InferInput(name, list(values.shape), "INT64")
        tensor.set_data_from_numpy(values)
        tensors.append(tensor)
    return tensors


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise AnswerError(f"model 'embed': {error}") from error
