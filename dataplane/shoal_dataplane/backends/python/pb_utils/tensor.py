"""Tensor as Python models know it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from shoal_dataplane.backends.python.pb_utils.datatypes import encode_elements
from shoal_dataplane.backends.python.pb_utils.errors import TritonModelException
from shoal_dataplane.core.dtypes import BY_WIRE, from_numpy
from shoal_dataplane.core.tensors import Tensor as CoreTensor


class Tensor:
    """A named tensor in host memory: made by a model from a numpy array, or an input as the server received it."""

    __slots__ = ("_array", "_core", "_datatype", "_name", "_shape")

    def __init__(self, name: str, numpy_array: np.ndarray[Any, Any]) -> None:
        """`numpy_array` is kept, not copied. Raises TritonModelException for an empty name or a dtype that is no datatype, TypeError
        for what is no numpy array."""
        if not isinstance(name, str):
            raise TypeError(f"a tensor's name must be a str, got {type(name).__name__}")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if not isinstance(numpy_array, np.ndarray):
            raise TypeError(f"tensor '{name}' must be made from a numpy array, got {type(numpy_array).__name__}")
        try:
            self._datatype = from_numpy(numpy_array.dtype).wire
        except KeyError:
            raise TritonModelException(
                f"tensor '{name}' has numpy dtype {numpy_array.dtype}, which is no Triton datatype"
            ) from None
        self._name = name
        self._array: np.ndarray[Any, Any] | None = numpy_array
        self._shape = numpy_array.shape
        self._core: CoreTensor | None = None

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, {self._datatype}, {list(self._shape)})"

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        return list(self._shape)

    def triton_dtype(self) -> int:
        """The number of the datatype in model_config.proto (TYPE_FP32 is 11)."""
        return BY_WIRE[self._datatype].config

    def is_cpu(self) -> bool:
        """Always True: tensors reach a model, and leave it, in host memory."""
        return True

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """The tensor as a writable numpy array; BYTES as an object array of bytes. The same array at every call.

        Raises TritonModelException for BF16, which numpy lacks.
        """
        array = self._array
        if array is None:
            if self._datatype == "BF16":
                raise TritonModelException(
                    "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
                )
            array = self._writable()
        return array

    def _writable(self) -> np.ndarray[Any, Any]:
        """The input as an array that the model may write into; BF16 as its bit patterns, uint16. Kept."""
        core = self._core
        assert core is not None
        datatype, data = BY_WIRE[core.datatype], core.data
        if datatype.itemsize and type(data) is memoryview and not data.readonly:
            array: np.ndarray[Any, Any] = np.ndarray(core.shape, datatype.numpy, data)
        else:
            array = core.array()
            if not array.flags.writeable:
                array = array.copy()
        self._array = array
        return array

    # -- DLPack

    def __dlpack__(self, **options: Any) -> Any:
        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        if self._datatype == "BF16":
            return self._as_torch().__dlpack__()
        return self.as_numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU

    def to_dlpack(self) -> Any:
        """The tensor as a DLPack capsule, sharing its memory. BF16 needs torch to be imported by the model."""
        return self.__dlpack__()

    @classmethod
    def from_dlpack(cls, name: str, tensor: Any) -> Tensor:
        """A tensor from anything with `__dlpack__` (a torch tensor, an array), or from a DLPack capsule. Memory is shared where it is
        in host memory; what is on a GPU is copied to the host."""
        if isinstance(tensor, Tensor):
            return tensor._renamed(name)
        if type(tensor).__name__ == "PyCapsule":
            tensor = _Capsule(tensor)
        elif not hasattr(tensor, "__dlpack__") or not hasattr(tensor, "__dlpack_device__"):
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule "
                "or have `__dlpack__` and `__dlpack_device__` attributes"
            )
        if hasattr(tensor, "detach") and hasattr(tensor, "cpu"):  # torch, which would refuse what needs a gradient
            tensor = tensor.detach().cpu().contiguous()
            if str(tensor.dtype) == "torch.bfloat16":
                bits = np.from_dlpack(tensor.view(sys.modules["torch"].int16)).view(np.uint16)
                return cls(name, bits)._retyped("BF16")
        try:
            return cls(name, np.from_dlpack(tensor))
        except (RuntimeError, BufferError) as error:
            raise TritonModelException(f"tensor '{name}' cannot be taken from DLPack: {error}") from None

    def _as_torch(self) -> Any:
        torch = sys.modules.get("torch")
        if torch is None:
            raise TritonModelException(
                f"tensor '{self._name}' is BF16: import torch in the model to use it through DLPack"
            )
        bits = self._writable() if self._array is None else self._array
        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)

    def _renamed(self, name: str) -> Tensor:
        renamed = Tensor.__new__(Tensor)
        renamed._name, renamed._datatype, renamed._shape = name, self._datatype, self._shape
        renamed._array, renamed._core = self._array, self._core
        return renamed

    def _retyped(self, datatype: str) -> Tensor:
        self._datatype = datatype
        return self


class _Capsule:
    """A bare capsule, in the form that numpy takes."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def wrap(core: CoreTensor) -> Tensor:
    """An input as a model sees it."""
    tensor = Tensor.__new__(Tensor)
    tensor._name = core.name
    tensor._datatype = core.datatype
    tensor._shape = core.shape
    tensor._array = None
    tensor._core = core
    return tensor


def unwrap(tensor: Tensor) -> CoreTensor:
    """A model's tensor as the server sees it: BYTES in the wire encoding, numbers as an array in native byte order."""
    core = tensor._core
    array = tensor._array
    if array is None:
        assert core is not None
        return CoreTensor(tensor._name, tensor._datatype, tensor._shape, core.data)
    if tensor._datatype == "BYTES":
        return CoreTensor(tensor._name, "BYTES", tensor._shape, encode_elements(array))
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return CoreTensor(tensor._name, tensor._datatype, tensor._shape, array)
