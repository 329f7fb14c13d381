"""The graph that finds the k best items: exact scores, excluded items struck out, the best taken.

A few queries are scored as a table of queries × items, and all of it is searched. Many are scored the other way
round, items × queries: the vectors of the items, which are most of what is read, then go into the product as they lie
in memory, where they would otherwise be rearranged first, and the scores of all queries for one item are neighbours.
There the best score of every block of items comes first. The k best items lie in the k blocks with the best items, so
only these blocks are searched item by item.

Equal scores stand in the order of the items, in both: of equal blocks the first is taken, and the chosen blocks are
searched in their order.
"""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

_MANY = 8
"""Queries from which on their scores are neighbours: as many as a processor multiplies at once."""
_BLOCK = 16
"""Items whose best score is looked at before their own."""


def head_graph(*, opset: int, ir_version: int) -> onnx.ModelProto:
    """query, rows, bias, excluded places, k → scores and places of the k best.

    The rows come in from outside, where they are mapped from a file.
    """
    constants: dict[str, NDArray[Any]] = {
        "one": np.array([1]),
        "two": np.array([2]),
        "first_two": np.array([0, 1]),
        "as_list": np.array([-1]),
        "as_column": np.array([-1, 1]),
        "as_table": np.array([0, -1]),
        "block": np.array([_BLOCK]),
        "inside": np.arange(_BLOCK),
        "never": np.array(-np.inf, np.float32),
        "many": np.array([_MANY]),
    }
    nodes = [
        helper.make_node("Shape", ["excluded"], ["num_excluded"], end=1),
        helper.make_node("Expand", ["never", "num_excluded"], ["struck_out"]),
        helper.make_node("Shape", ["query"], ["num_queries"], end=1),
        helper.make_node("Shape", ["bias"], ["num_items"]),
        helper.make_node("Less", ["num_queries", "many"], ["are_few"]),
        helper.make_node(
            "If", ["are_few"], ["scores", "places"], then_branch=_for_few(), else_branch=_for_many()
        ),
    ]
    inputs = [
        _value("query", TensorProto.FLOAT, "B", "D"),
        _value("rows", TensorProto.FLOAT, "V", "D"),
        _value("bias", TensorProto.FLOAT, "V"),
        _value("excluded", TensorProto.INT64, "E", 2),
        _value("k", TensorProto.INT64, 1),
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "head", inputs, _best("scores", "places"), initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def _for_few() -> onnx.GraphProto:
    nodes = [
        helper.make_node("Gemm", ["query", "rows", "bias"], ["scores_BV"], transB=1),
        helper.make_node("Concat", ["num_items", "one"], ["strides"], axis=0),
        *_strike_out("scores_BV", "possible_BV"),
        helper.make_node("TopK", ["possible_BV", "k"], ["few_scores", "few_places"]),
    ]
    return helper.make_graph(nodes, "few", [], _best("few_scores", "few_places"), value_info=_IN_PLACE)


def _for_many() -> onnx.GraphProto:
    nodes = [
        helper.make_node("Reshape", ["bias", "as_column"], ["bias_V1"]),
        helper.make_node("Gemm", ["rows", "query", "bias_V1"], ["scores_VB"], transB=1),
        helper.make_node("Concat", ["one", "num_queries"], ["strides"], axis=0),
        *_strike_out("scores_VB", "possible_VB"),
        # The k blocks with the best items, in their order. The last block may have fewer items.
        helper.make_node("Unsqueeze", ["possible_VB", "first_two"], ["possible_11VB"]),
        helper.make_node(
            "MaxPool",
            ["possible_11VB"],
            ["maxima_11NB"],
            kernel_shape=[_BLOCK, 1],
            strides=[_BLOCK, 1],
            ceil_mode=1,
        ),
        helper.make_node("Squeeze", ["maxima_11NB", "first_two"], ["maxima_NB"]),
        helper.make_node("Transpose", ["maxima_NB"], ["maxima_BN"], perm=[1, 0]),
        helper.make_node("Shape", ["maxima_NB"], ["num_blocks"], end=1),
        helper.make_node("Min", ["k", "num_blocks"], ["num_chosen"]),
        helper.make_node("TopK", ["maxima_BN", "num_chosen"], ["best_maxima", "best_blocks"]),
        helper.make_node("TopK", ["best_blocks", "num_chosen"], ["blocks_BK", "order"], largest=0),
        # Their items. What is missing in the last block never comes among the best.
        helper.make_node("Mul", ["blocks_BK", "block"], ["first_BK"]),
        helper.make_node("Unsqueeze", ["first_BK", "two"], ["first_BK1"]),
        helper.make_node("Add", ["first_BK1", "inside"], ["items_BKI"]),
        helper.make_node("Reshape", ["items_BKI", "as_table"], ["items_BC"]),
        helper.make_node("Less", ["items_BC", "num_items"], ["exists_BC"]),
        helper.make_node("Sub", ["num_items", "one"], ["last_item"]),
        helper.make_node("Min", ["items_BC", "last_item"], ["candidates_BC"]),
        helper.make_node("Transpose", ["candidates_BC"], ["candidates_CB"], perm=[1, 0]),
        helper.make_node("GatherElements", ["possible_VB", "candidates_CB"], ["found_CB"], axis=0),
        helper.make_node("Transpose", ["found_CB"], ["found_BC"], perm=[1, 0]),
        helper.make_node("Where", ["exists_BC", "found_BC", "never"], ["possible_BC"]),
        helper.make_node("TopK", ["possible_BC", "k"], ["many_scores", "best_BK"]),
        helper.make_node("GatherElements", ["candidates_BC", "best_BK"], ["many_places"], axis=1),
    ]
    return helper.make_graph(nodes, "many", [], _best("many_scores", "many_places"), value_info=_IN_PLACE)


def _strike_out(scores: str, possible: str) -> list[onnx.NodeProto]:
    """Scores without those that are excluded: query and item of these, times `strides`, are places in a flat list.

    Not by ScatterND: ONNX Runtime would copy all scores for it.
    """
    return [
        helper.make_node("Mul", ["excluded", "strides"], ["steps"]),
        helper.make_node("ReduceSum", ["steps", "one"], ["excluded_list"], keepdims=0),
        helper.make_node("Reshape", [scores, "as_list"], ["scores_list"]),
        helper.make_node(
            "ScatterElements", ["scores_list", "excluded_list", "struck_out"], ["possible_list"]
        ),
        helper.make_node("Shape", [scores], ["shape"]),
        helper.make_node("Reshape", ["possible_list", "shape"], [possible]),
    ]


def _best(scores: str, places: str) -> list[onnx.ValueInfoProto]:
    return [_value(scores, TensorProto.FLOAT, "B", "K"), _value(places, TensorProto.INT64, "B", "K")]


def _value(name: str, kind: int, *shape: str | int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


_IN_PLACE = [_value(name, TensorProto.FLOAT, "S") for name in ("scores_list", "possible_list")]
"""Only what is declared to have the same length is changed where it is, instead of being copied."""
