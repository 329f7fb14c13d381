"""Item vectors as whole numbers, and how wrong they can be: by them `recommend.search.quantised` searches catalogues.

The vectors of a block of items are stored as whole steps from -63 to 63, where each block has its own step. The bias
is one more number of every vector, in a unit that makes it as large as the others; the query then has the unit there.
Where no item has a bias, it is left out.
What a score can be wrong by follows from the Cauchy-Schwarz inequality. With a vector v stored as v', and a query q
rounded to q', v·q - v'·q' = (v - v')·q + v'·(q - q') ≤ |v - v'| |q| + |v'| |q - q'|, and each block has the largest
|v - v'| and |v'| of its items. What float32 loses in a sum of n products, less than n * 2**-23 of their size in
whatever order, is part of the former.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert4rec.recommend.search.quantised import BLOCK

if TYPE_CHECKING:
    import onnx

LARGE_CATALOGUE = 100_000
"""Items from which on whole numbers are written. With fewer, exact vectors take hardly longer."""
_LARGEST_WHOLE = 63
"""Not 127: processors without VNNI add two products with 16 bits, and 2 * 255 * 63 is what these hold."""
_ZERO_POINT = 128
_SMALLEST_STEP = 1e-20
"""Smaller numbers are stored as 0, so that no product is too small for float32."""
_ROUNDING, _NOTHING, _MARGIN = 2.0**-22, 1e-25, 1.001
"""Twice what a sum loses, a product that is too small for float32, and what computing the bounds itself loses."""
_ROWS_AT_ONCE = 2**12 * BLOCK


class QuantisedRows(NamedTuple):
    """The rows of a whole number of blocks."""

    whole: NDArray[np.int8]
    """[V, D], or [V, D + 1] with the bias last"""
    steps: NDArray[np.float32]
    """[blocks]"""
    errors: NDArray[np.float32]
    """[2, blocks]: the largest error and the largest length of a stored vector."""


def quantise(rows: NDArray[np.float32], bias: NDArray[np.float32], bias_unit: float) -> QuantisedRows:
    """Store rows and bias as whole numbers, and tell how wrong they are."""
    parts = []
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        some = slice(first, first + _ROWS_AT_ONCE)
        wide = np.column_stack([rows[some], bias[some] / np.float32(bias_unit)]) if bias_unit else rows[some]
        parts.append(_quantise(np.pad(wide, ((0, -len(wide) % BLOCK), (0, 0)))))
    whole, steps, lost, length = (np.concatenate(part) for part in zip(*parts, strict=True))
    return QuantisedRows(whole, steps, np.stack([lost, length]))


def unit_of_bias(rows: NDArray[np.float32], bias: NDArray[np.float32]) -> float:
    """What makes the largest bias as large as the largest number of the rows; 0 if there is no bias."""
    if not bias.any():
        return 0.0
    largest = max(float(rows.max()), -float(rows.min()))
    unit = float(np.abs(bias).max()) / largest if largest else 1.0
    return unit if _SMALLEST_STEP < unit < 1 / _SMALLEST_STEP else 1.0


@np.errstate(
    invalid="ignore", over="ignore"
)  # what is not a number gets bounds that are none, and prove nothing
def _quantise(
    rows: NDArray[np.float32],
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    blocks = rows.reshape(-1, BLOCK, rows.shape[1])
    steps = np.abs(blocks).max(axis=(1, 2)) / np.float32(_LARGEST_WHOLE)
    steps[steps < _SMALLEST_STEP] = 0
    step = steps[:, None, None].astype(np.float64)
    whole = np.divide(blocks, step, out=np.zeros(blocks.shape), where=step != 0)
    whole = np.clip(np.rint(whole), -_LARGEST_WHOLE, _LARGEST_WHOLE)
    stored = whole * step
    lost, length = np.linalg.norm(blocks - stored, axis=2), np.linalg.norm(stored, axis=2)
    lost += (rows.shape[1] + 8) * _ROUNDING * (length + lost) + _NOTHING
    largest = [(_MARGIN * kind.max(axis=1)).astype(np.float32) for kind in (lost, length)]
    return whole.reshape(rows.shape).astype(np.int8), steps, *largest


def search_graph(
    rows: NDArray[np.float32], bias: NDArray[np.float32], *, opset: int, ir_version: int
) -> "onnx.ModelProto":
    """query of whole numbers, its step, what errors count for it, count → bounds of the blocks, the `count` highest."""
    from onnx import TensorProto, helper, numpy_helper

    def value(name: str, kind: int, *shape: str | int) -> "onnx.ValueInfoProto":
        return helper.make_tensor_value_info(name, kind, shape)

    bias_unit = unit_of_bias(rows, bias)
    quantised = quantise(rows, bias, bias_unit)
    width, num_blocks = quantised.whole.shape[1], len(quantised.steps)
    constants: dict[str, NDArray[Any]] = {
        "rows": np.ascontiguousarray(quantised.whole.T),
        "zero_point": np.array(_ZERO_POINT, np.uint8),
        "steps": quantised.steps,
        "errors": quantised.errors,
        "by_block": np.array([0, num_blocks, BLOCK]),
        "items": np.array([2]),
    }
    nodes = [
        helper.make_node("MatMulInteger", ["query", "rows", "zero_point"], ["products"]),
        helper.make_node("Reshape", ["products", "by_block"], ["products_of_blocks"]),
        helper.make_node("ReduceMax", ["products_of_blocks", "items"], ["best_products"], keepdims=0),
        helper.make_node("Cast", ["best_products"], ["best_whole"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["best_whole", "steps"], ["best_steps"]),
        helper.make_node("Mul", ["best_steps", "query_step"], ["best_scores"]),
        helper.make_node("MatMul", ["doubt", "errors"], ["wrong_by"]),
        helper.make_node("Add", ["best_scores", "wrong_by"], ["bounds"]),
        helper.make_node("TopK", ["bounds", "count"], ["highest_bounds", "best"]),
    ]
    inputs = [
        value("query", TensorProto.UINT8, "B", width),
        value("query_step", TensorProto.FLOAT, "B", 1),
        value("doubt", TensorProto.FLOAT, "B", 2),
        value("count", TensorProto.INT64, 1),
    ]
    outputs = [
        value("bounds", TensorProto.FLOAT, "B", num_blocks),
        value("best", TensorProto.INT64, "B", "C"),
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "search", inputs, outputs, initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    helper.set_model_props(made, {"bias_unit": repr(bias_unit)})
    return made
