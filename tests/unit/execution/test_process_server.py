"""What a model in a worker process asks of its server: other models, the repository, metrics, the log; and what it is told."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Tensor
from shoal_dataplane.telemetry.custom_metrics import HistogramValue
from tests.unit.execution.worker_models import FP32_4, Running, infer, running, wait_for

# Runs the expression in a request's id and answers with its value as JSON.
ASKING = """
import asyncio, json, logging, os, sys, threading, time, warnings
import numpy as np
import triton_python_backend_utils as pb_utils

log = logging.getLogger("mine")

def ask(model, array, **more):
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", array)], **more)

def show(response):
    if response.has_error():
        return [int(response.error().code()), response.error().message()]
    out = pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()
    return [out.dtype.name, list(out.shape), float(out.sum()), response.parameters()]

async def ask_all(model, arrays):
    return [show(r) for r in await asyncio.gather(*[ask(model, a).async_exec() for a in arrays])]

async def give_up(model):
    future = ask(model, np.zeros(1)).async_exec()
    await asyncio.sleep(0)
    future.cancel()
    return "gave up"

def failing(function, *args, **more):
    try:
        function(*args, **more)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.early = failing(ask("double", np.ones(3)).exec)
        self.ready = True
        self.requests = None

    def is_ready(self):
        return self.ready

    async def execute(self, requests):
        out = []
        for r in requests:
            value = eval(r.request_id(), {**globals(), "self": self, "r": r})
            if asyncio.iscoroutine(value):
                value = await value
            array = np.empty((1, 1), object)
            array[0, 0] = json.dumps(value)
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        return out
"""
CONFIG = FP32_4.replace("TYPE_FP32 dims: [ 4 ] }\n", "TYPE_FP32 dims: [ 4 ] }\n", 1).replace(
    'name: "OUT" data_type: TYPE_FP32 dims: [ 4 ]', 'name: "OUT" data_type: TYPE_STRING dims: [ 1 ]'
)


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("asking"), ASKING, CONFIG) as model:
        yield model


def value(model: Running, expression: str) -> Any:
    """What the model makes of the expression."""
    (response,) = model.run(infer(id=expression)).responses
    assert response.error is None, response.error
    return json.loads(response.outputs[0].array()[0, 0])


# -- other models


@pytest.mark.parametrize("size", [3, 0, 100_000])
def test_a_model_asks_another_and_waits(asking: Running, size: int) -> None:
    assert value(asking, f"show(ask('double', np.ones({size}, np.float32), request_id='r').exec())") == [
        "float32",
        [size],
        2.0 * size,
        '{"asked":"r"}',
    ]


def test_what_a_model_asks_arrives_whole(asking: Running) -> None:
    value(
        asking,
        "show(ask('double', np.ones(2, np.int16), request_id='é', correlation_id=7, model_version=3, timeout=9,"
        " flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END, parameters={'p': 1, 'q': 'x', 'r': True}).exec())",
    )
    request = asking.service.received[-1]
    assert (request.id, request.model_name, request.model_version, request.outputs) == ("é", "double", "3", ("OUT",))
    assert (request.correlation_id, request.timeout_us, request.sequence_start, request.sequence_end) == (
        7,
        9,
        False,
        True,
    )
    assert request.parameters == {"p": 1, "q": "x", "r": True}
    assert request.arrival_ns > 0
    np.testing.assert_array_equal(request.inputs["IN"].array(), np.ones(2, np.int16))


def test_a_model_without_a_version_means_the_newest(asking: Running) -> None:
    value(asking, "show(ask('double', np.ones(1)).exec())")
    assert asking.service.received[-1].model_version == ""


def test_a_failure_of_the_other_model_is_the_responses_error(asking: Running) -> None:
    assert value(asking, "show(ask('nobody', np.ones(1)).exec())") == [
        2,
        "Request for unknown model: 'nobody' is not found",
    ]


def test_a_model_asks_many_at_once(asking: Running) -> None:
    answers = value(asking, "ask_all('double', [np.full(2, n, np.float32) for n in range(50)])")
    assert [answer[2] for answer in answers] == [4.0 * n for n in range(50)]


def test_threads_of_a_model_ask_at_the_same_time(asking: Running) -> None:
    expression = """(lambda out: [[t.start() for t in ts] and [t.join() for t in ts] for ts in [[
        threading.Thread(target=lambda n=n: out.append((n, show(ask('double', np.full(1, n, np.float32)).exec())[2]))) for n in range(8)
    ]]] and sorted(out))([])"""
    assert value(asking, expression) == [[n, 2.0 * n] for n in range(8)]


def test_a_request_that_a_model_gives_up_is_cancelled(asking: Running) -> None:
    asking.service.arrived.clear()
    assert value(asking, "give_up('slow')") == "gave up"
    wait_for(lambda: asking.service.cancelled)
    (request,) = asking.service.cancelled
    assert request.model_name == "slow"
    asking.on_loop(lambda: request.handle.respond(request, InferResponse([])))  # the late answer harms nobody
    asking.service.cancelled.clear()
    assert value(asking, "1") == 1


def test_asking_is_for_execute_only_and_not_decoupled(asking: Running) -> None:
    assert value(asking, "self.early") == ("TritonModelException: BLS is only supported during the 'execute' function.")
    assert value(asking, "failing(ask('double', np.ones(1)).exec, decoupled=True)") == (
        "TritonModelException: decoupled=True is not supported yet"
    )
    assert value(asking, "failing(r.get_response_sender)").startswith("TritonModelException: decoupled models")


def test_requests_of_a_process_that_ends_are_cancelled(tmp_path: Path) -> None:
    with running(tmp_path, ASKING, CONFIG) as model:
        pending = model.send([infer(id="show(ask('slow', np.ones(1)).exec())")])
        assert model.service.arrived.wait(30)
        os.kill(model.pid, signal.SIGKILL)
        assert isinstance(pending.result(), ServingError)
        wait_for(lambda: model.service.cancelled)
        (request,) = model.service.held
        model.on_loop(lambda: request.handle.respond(request, InferResponse([Tensor("OUT", "FP32", (1,), bytes(4))])))


# -- the repository


def test_a_model_loads_unloads_and_asks_for_readiness(asking: Running) -> None:
    asking.service.calls.clear()
    big = 200_000
    assert value(asking, "pb_utils.is_model_ready('double')") is True
    assert value(asking, "pb_utils.is_model_ready('x', '3')") is False
    value(asking, f"pb_utils.load_model('x', config='{{}}', files={{'file:1/model.onnx': b'0' * {big}}})")
    value(asking, "pb_utils.unload_model('x', unload_dependents=True)")
    assert asking.service.calls == [
        ("load", "x", {"config": "{}", "file:1/model.onnx": b"0" * big}),
        ("unload", "x", True),
    ]
    assert value(asking, "failing(pb_utils.load_model, 'broken')") == (
        "TritonModelException: Failed to load model: failed to load 'broken', failed to poll from model repository"
    )
    assert value(asking, "failing(pb_utils.load_model, 'x', files=3)") == (
        "TritonModelException: failed to load model 'x', files should be a dictionary of file paths and file contents"
    )


# -- metrics


def test_a_models_metrics_are_the_servers(asking: Running) -> None:
    value(asking, "setattr(self, 'f', pb_utils.MetricFamily('hits', 'how many', pb_utils.MetricFamily.COUNTER))")
    value(asking, "setattr(self, 'm', self.f.Metric(labels={'model': 'm', 'n': 1}))")
    value(asking, "[self.m.increment(2), self.m.increment(0.5)]")
    assert value(asking, "self.m.value()") == 2.5
    value(asking, "setattr(self, 'g', pb_utils.MetricFamily('level', '', pb_utils.MetricFamily.GAUGE).Metric())")
    value(asking, "[self.g.set(4), self.g.increment(-1)]")
    family = "pb_utils.MetricFamily('times', 'seconds', pb_utils.MetricFamily.HISTOGRAM)"
    value(asking, f"setattr(self, 'h', {family}.Metric(buckets=[0.1, 1]))")
    value(asking, "[self.h.observe(x) for x in (0.05, 0.1, 0.5, 7)]")
    assert value(asking, "self.g.value()") == 3
    hits, level, times = asking.bridge.custom_metrics.collect()
    assert (hits.name, hits.description, str(hits.kind)) == ("hits", "how many", "counter")
    assert hits.samples == [((("model", "m"), ("n", "1")), 2.5)]
    assert level.samples == [((), 3.0)]
    (sample,) = times.samples
    assert isinstance(sample.value, HistogramValue)
    assert (sample.value.bounds, sample.value.counts) == ((0.1, 1.0), (2, 1, 1))
    assert sample.value.total == pytest.approx(7.65)
    value(asking, "[delattr(self, name) for name in ('m', 'f', 'g', 'h')]")
    wait_for(lambda: not asking.bridge.custom_metrics.collect())


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (
            "pb_utils.MetricFamily('no good', '', pb_utils.MetricFamily.GAUGE)",
            "Error when creating MetricFamily: 'no good' is no name",
        ),
        ("self.counter.increment(-1)", "Failed to increment metric value: a counter can only be incremented, got -1"),
        ("self.counter.set(1)", "Failed to set metric value: a counter has no operation 'set'"),
        ("self.counter.observe(1)", "Failed to observe metric value: a counter has no operation 'observe'"),
        ("self.counter.increment(float('nan'))", "Failed to increment metric value: nan is no value"),
        ("self.family.Metric(labels=3)", "Failed to create metric. Labels must be a dictionary."),
        ("self.family.Metric(buckets=[1])", "Failed to create metric. Unexpected buckets found."),
        ("self.family.Metric(labels={'a b': 'c'})", "Error when creating Metric: 'a b' is no name for a label"),
        ("self.histogram.Metric()", "Failed to create metric. Missing required buckets."),
        ("self.histogram.Metric(buckets=3)", "Failed to create metric. Buckets must be a list."),
        (
            "self.histogram.Metric(buckets=[2, 1])",
            "Error when creating Metric: the buckets of 'h' must be finite and increase",
        ),
        (
            "self.histogram.Metric(buckets=[])",
            "Error when creating Metric: a histogram of 'h' needs 1 to 200 buckets, got 0",
        ),
        ("self.histogram.Metric(buckets=[1]).value()", "Failed to get metric value: a histogram has no single value"),
        (
            "pb_utils.MetricFamily('c', '', pb_utils.MetricFamily.GAUGE)",
            "Error when creating MetricFamily: the metric family 'c' exists",
        ),
    ],
)
def test_a_wrong_use_of_metrics_is_refused_in_words(asking: Running, expression: str, text: str) -> None:
    value(
        asking,
        "hasattr(self, 'family') or [setattr(self, 'family', pb_utils.MetricFamily('c', '', pb_utils.MetricFamily.COUNTER)),"
        " setattr(self, 'counter', self.family.Metric()),"
        " setattr(self, 'histogram', pb_utils.MetricFamily('h', '', pb_utils.MetricFamily.HISTOGRAM))] and None",
    )
    assert value(asking, f"failing(lambda: {expression})").startswith(f"TritonModelException: {text}")


def test_metrics_of_a_process_that_ends_are_gone(tmp_path: Path) -> None:
    with running(tmp_path, ASKING, CONFIG) as model:
        value(model, "setattr(self, 'm', pb_utils.MetricFamily('x', '', pb_utils.MetricFamily.GAUGE).Metric())")
        assert model.bridge.custom_metrics.collect()
        os.kill(model.pid, signal.SIGKILL)
        wait_for(lambda: not model.bridge.custom_metrics.collect())
        model.wait_free()


# -- the log


def test_what_a_model_logs_and_prints_is_in_the_servers_log(asking: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    value(
        asking,
        "[pb_utils.Logger.log_info('i'), pb_utils.Logger.log_warn('w'), pb_utils.Logger.log_error('e'),"
        " pb_utils.Logger.log('x', pb_utils.Logger.WARNING), log.warning('mine %d', 3),"
        " print('out'), print('err', file=sys.stderr), print('no newline', end='', flush=True), print()] and None",
    )
    wanted = {
        (logging.INFO, "m_0: i"),
        (logging.WARNING, "m_0: w"),
        (logging.ERROR, "m_0: e"),
        (logging.WARNING, "m_0: x"),
        (logging.WARNING, "m_0: mine 3"),
        (logging.INFO, "m_0: out"),
        (logging.INFO, "m_0: err"),
        (logging.INFO, "m_0: no newline"),
    }
    wait_for(lambda: wanted <= {(r.levelno, r.getMessage()) for r in caplog.records})
    record = next(r for r in caplog.records if r.getMessage() == "m_0: w")
    assert (record.name, record.model, record.instance) == ("shoal_dataplane.models", "m", "m_0")  # type: ignore[attr-defined]


def test_a_model_that_prints_without_end_does_not_flood_the_log(
    asking: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    value(asking, "print('flood\\n' * 200_000) and None")
    value(asking, "print('x' * 100_000) and None")
    wait_for(lambda: any("lines left out" in r.getMessage() for r in caplog.records) or value(asking, "print('.')"))
    assert sum(r.getMessage() == "m_0: flood" for r in caplog.records) < 100_000
    assert max(len(r.getMessage()) for r in caplog.records) < 20_000


def test_an_exception_of_a_model_is_in_the_servers_log(asking: Running, caplog: pytest.LogCaptureFixture) -> None:
    asking.fail(infer(id="1/0"))
    wait_for(lambda: "ZeroDivisionError: division by zero" in caplog.text)


# -- told


def test_a_model_sees_while_it_runs_that_its_caller_is_gone(asking: Running) -> None:
    stays, goes = (
        infer(id="r.is_cancelled()"),
        infer(id="[time.sleep(0.01) for _ in iter(lambda: r.is_cancelled(), True)] is not None"),
    )
    pending = asking.send([goes, stays])
    goes.cancelled = True
    asking.on_loop(lambda: asking.executor.cancel(pending.batch))
    result = pending.result()
    assert not isinstance(result, ServingError)
    assert [json.loads(response.outputs[0].array()[0, 0]) for response in result.responses] == [True, False]


def test_a_cancellation_that_comes_late_is_not_the_next_batchs(asking: Running) -> None:
    first = asking.send([infer(id="1")])
    first.result()
    first.batch.requests[0].cancelled = True
    asking.on_loop(lambda: asking.executor.cancel(first.batch))
    assert value(asking, "r.is_cancelled()") is False


def test_initialize_is_told_what_triton_tells(asking: Running) -> None:
    args = value(asking, "self.args")
    config = json.loads(args.pop("model_config"))
    folder = asking.executor._context.model_dir
    assert args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "m_0",
        "model_instance_device_id": "0",
        "model_repository": str(folder),
        "model_version": "1",
        "model_name": "m",
    }
    assert (config["max_batch_size"], config["input"][0]["dims"], config["input"][0]["data_type"]) == (
        8,
        [4],
        "TYPE_FP32",
    )
    assert value(asking, "pb_utils.get_model_dir()") == str(folder / "1")


def test_a_worker_leaves_cores_for_the_others(asking: Running) -> None:
    assert value(asking, "int(os.environ['OMP_NUM_THREADS']) >= 1") is True


def test_is_ready_decides_whether_the_model_is_healthy(
    asking: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shoal_dataplane.execution.worker.watch.TICK_SECONDS", 0.05)
    wait_for(asking.executor.healthy)
    value(asking, "setattr(self, 'ready', False)")
    wait_for(lambda: not asking.executor.healthy())
    assert asking.on_loop(asking.executor.free), "a model that is not ready still answers, as in Triton"
    value(asking, "setattr(self, 'ready', 'yes')")
    wait_for(lambda: "is_ready() must return a boolean value" in caplog.text)
    value(asking, "setattr(self, 'ready', True)")
    wait_for(asking.executor.healthy)


def test_the_module_is_known_by_its_name_only_where_a_model_runs() -> None:
    with pytest.raises(ModuleNotFoundError):
        __import__("triton_python_backend_utils")


def test_requests_are_not_kept_when_they_are_answered(asking: Running) -> None:
    request: InferRequest = infer(id="1")
    asking.run(request)
    assert asking.executor._batch is None
    assert asking.executor._watch is not None
    assert asking.executor._watch.running is None


def test_a_worker_imports_no_framework_and_no_transport(asking: Running) -> None:
    assert value(asking, "[m for m in ('torch', 'onnxruntime', 'grpc', 'aiohttp') if m in sys.modules]") == []
