"""The table of items in a NumPy file beside the graphs, which read it there instead of carrying copies.

A table of 2 GiB and more could not even be part of a graph for a moment.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx
    import onnx_ir


def carried_by(model: "onnx_ir.Model") -> "list[onnx_ir.TensorProtocol]":
    """The constants of a graph that lie in no other file."""
    import onnx_ir

    tensors = (value.const_value for value in model.graph.initializers.values())
    return [each for each in tensors if each is not None and not isinstance(each, onnx_ir.ExternalTensor)]


class TableFile:
    """A table, and the file that it was written to."""

    def __init__(self, table: NDArray[np.float32], path: Path) -> None:
        self._table, self._path = table, path
        self._begin = path.stat().st_size - table.nbytes

    def leave_out(self, model: "onnx_ir.Model") -> None:
        """Let a graph that has just been traced, and shares the memory of the table, read the file."""
        import onnx_ir

        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.nbytes != self._table.nbytes:
                continue
            if np.may_share_memory(tensor.numpy(), self._table):
                value.const_value = onnx_ir.ExternalTensor(
                    self._path.name,
                    self._begin,
                    self._table.nbytes,
                    tensor.dtype,
                    shape=onnx_ir.Shape(self._table.shape),
                    name=value.name or "",
                    base_dir=self._path.parent,
                )

    def take_out(self, graph: "onnx.ModelProto") -> None:
        """Let a graph that carries a copy read the file.

        The table is found by its content. The same numbers in another order, as in a transposed copy, are an error: the
        folder, and the memory of every worker, would be twice as large.
        """
        from onnx import TensorProto
        from onnx.external_data_helper import set_external_data

        for tensor in graph.graph.initializer:
            if tensor.data_type != TensorProto.FLOAT or len(tensor.raw_data) != self._table.nbytes:
                continue
            content = np.frombuffer(tensor.raw_data, np.float32)
            if np.array_equal(content, self._table.ravel()):
                set_external_data(tensor, self._path.name, offset=self._begin, length=self._table.nbytes)
                tensor.ClearField("raw_data")
            elif np.array_equal(np.sort(content), np.sort(self._table, axis=None)):
                raise RuntimeError(f"The graph holds a changed copy of the table of items: {tensor.name}.")
