"""Real models at 70 % load: all-MiniLM-L6-v2 (32 tokens) and EfficientNet-Lite0 (one image), beside the same TorchScript files in
Triton's Python backend.

A server's capacity is what it answers in a closed loop of 16 callers; then 70 % of it is offered, and the latencies are shown. Each
server is asked for 70 % of its own capacity, so the faster one carries more. Requests come evenly spaced.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.harness import models, servers
from bench.harness.load import Load, h2load, median, request
from bench.harness.report import machine, table

LIMIT_MS = 100
CALLERS = 16
QUEUE_DELAY_US = 2000

CONFIGS = {
    "minilm": """
        max_batch_size: 32
        input [
          { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
          { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
        ]
        output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 384 ] } ]
        """,
    "classifier": """
        max_batch_size: 16
        input [ { name: "image" data_type: TYPE_UINT8 dims: [ 224, 224, 3 ] } ]
        output [ { name: "probabilities" data_type: TYPE_FP32 dims: [ 1000 ] } ]
        """,
}
INPUTS = {"minilm": ("input_ids", "attention_mask"), "classifier": ("image",)}
OUTPUT = {"minilm": "embedding", "classifier": "probabilities"}

PYTHON_MODEL = """
import os

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


class TritonPythonModel:
    def initialize(self, args):
        self.net = torch.jit.load(os.path.join(args["model_repository"], args["model_version"], "model.pt")).eval()

    @torch.inference_mode()
    def execute(self, requests):
        parts = [[pb_utils.get_input_tensor_by_name(r, name).as_numpy() for name in {inputs}] for r in requests]
        together = [torch.from_numpy(np.concatenate(column)) for column in zip(*parts)]
        answers = self.net(*together).numpy()
        responses, at = [], 0
        for part in parts:
            rows = part[0].shape[0]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("{output}", answers[at : at + rows])]))
            at += rows
        return responses
"""


def messages() -> dict[str, bytes]:
    """One request for each model."""
    random = np.random.default_rng(0)
    ids = random.integers(1000, 20000, (1, 32))
    image = random.integers(0, 255, (1, 224, 224, 3), dtype=np.uint8)
    return {
        "minilm": request("minilm", input_ids=ids, attention_mask=np.ones_like(ids)),
        "classifier": request("classifier", image=image),
    }


def write(repository: Path, prepared: Path, python: bool) -> None:
    """Write both models, for the PyTorch backend or as Python models around the same file."""
    for name, config in CONFIGS.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        shutil.copy(prepared / name / "1" / "model.pt", version / "model.pt")
        backend = "python" if python else "pytorch"
        (version.parent / "config.pbtxt").write_text(
            f'backend: "{backend}"\n{config}\n{models.dynamic(QUEUE_DELAY_US)}\n'
        )
        if python:
            code = PYTHON_MODEL.replace("{inputs}", repr(INPUTS[name])).replace("{output}", OUTPUT[name])
            (version / "model.py").write_text(code.lstrip())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6)
    options = parser.parse_args(argv)
    print(f"real_models: {machine()}")
    subprocess.run(
        [sys.executable, "-m", "shoal_cli.main", "quickstart", "--prepare"], check=True, stdout=subprocess.DEVNULL
    )
    prepared = servers.ROOT / "manifests" / "quickstart" / "models"
    asked = messages()
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        write(Path(scratch, "torch"), prepared, python=False)
        write(Path(scratch, "python"), prepared, python=True)
        made = {
            "shoal, PyTorch": servers.shoal(Path(scratch, "torch")),
            "shoal, Python": servers.shoal(Path(scratch, "python")),
        }
        if servers.have_triton():
            made["triton, Python"] = servers.triton(Path(scratch, "python"))
        running = {name: stack.enter_context(server) for name, server in made.items()}
        capacity: dict[tuple[str, str], list[float]] = {}
        loaded: dict[tuple[str, str], list[Load]] = {}
        for _ in range(options.rounds):
            for model, message in asked.items():
                for name, server in running.items():
                    full = h2load(server.grpc, message, CALLERS, options.seconds / 2)
                    capacity.setdefault((name, model), []).append(full.rate)
                    rate = max(4, int(0.7 * median(capacity[name, model])))
                    loaded.setdefault((name, model), []).append(
                        h2load(server.grpc, message, CALLERS, options.seconds, rate=rate, most_connections=1)
                    )
    for model in asked:
        rows = []
        for name in made:
            runs = loaded[name, model]
            p99 = median([run.p99 for run in runs])
            rows.append(
                [
                    name,
                    f"{median(capacity[name, model]):.0f}",
                    f"{median([run.rate for run in runs]):.0f}",
                    f"{median([run.p50 for run in runs]):.1f}",
                    f"{p99:.1f}" + (" MISSED" if name.startswith("shoal") and p99 >= LIMIT_MS else ""),
                ]
            )
        header = ["server", f"capacity/s (c{CALLERS})", "served/s at 70 %", "p50 ms", f"p99 ms (limit {LIMIT_MS})"]
        table(f"{model}, medians of {options.rounds}", header, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
