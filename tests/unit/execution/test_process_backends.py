"""Any backend's model can have a process of its own (SHOAL_EXECUTION=process), and answers as it does without one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal_dataplane.backends.base import Execution, InstanceSpec, ModelContext
from shoal_dataplane.backends.onnx.backend import BACKEND
from shoal_dataplane.core.loop import ThreadedLoop
from shoal_dataplane.core.model_spec import compile_spec
from shoal_dataplane.execution.bridge import ServerBridge
from shoal_dataplane.execution.process import ProcessExecutor
from tests.unit.backends.loading import completed
from tests.unit.backends.onnx_models import mlp
from tests.unit.execution.worker_models import FakeService, Running, infer


def test_an_onnx_model_answers_the_same_in_a_process_of_its_own(tmp_path: Path) -> None:
    version_dir = mlp(tmp_path / "m" / "1")
    config = completed(BACKEND, version_dir, 'backend: "onnxruntime"')
    context = ModelContext("m", 1, tmp_path / "m", version_dir, config, compile_spec(config, 1), {})
    instance = InstanceSpec("m_0", "CPU", 0)
    batch = [infer(np.random.default_rng(n).random((n, 8), np.float32), "x") for n in (1, 3)]
    here = BACKEND.load(context, instance)
    expected = here.execute(batch).responses
    here.close()
    loop = ThreadedLoop()
    loop.start()
    service = FakeService()
    bridge = ServerBridge(loop, service)
    executor = ProcessExecutor.start(context, instance, loop, bridge)
    try:
        result = Running(executor, loop, service, bridge).send(batch).result()
        assert isinstance(result, Execution)
        for there, response in zip(result.responses, expected, strict=True):
            np.testing.assert_allclose(there.outputs[0].array(), response.outputs[0].array(), rtol=1e-5)
    finally:
        executor.close()
        loop.stop()
