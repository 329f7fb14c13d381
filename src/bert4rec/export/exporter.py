"""From a trained run to a model folder that ONNX Runtime serves without torch.

The graphs hold everything but the table of items: that lies in items.npy, once, and is mapped into memory by the
graphs and by NumPy alike, so that workers on one machine share it.
"""

import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bert4rec import __version__
from bert4rec.artefact import new_folder, sha256_of, write_manifest, write_text
from bert4rec.data.dataset import Dataset, Repeats
from bert4rec.data.trained import Trained
from bert4rec.errors import UsageError
from bert4rec.export.build_index import build_index
from bert4rec.export.quantise import LARGE_CATALOGUE, search_graph
from bert4rec.export.table_file import TableFile, carried_by
from bert4rec.models.history_batch import PaddedHistories
from bert4rec.models.model import SequentialModel
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.onnx_engine import MANIFEST, SCHEMA
from bert4rec.recommend.rules.attributes import FILE as ATTRIBUTES
from bert4rec.recommend.rules.attributes import NO_ATTRIBUTES, Attributes
from bert4rec.recommend.rules.degenerate import refuse_degenerate
from bert4rec.recommend.torch_engine import TorchEngine
from bert4rec.training.device import Placement
from bert4rec.training.run import Run

if TYPE_CHECKING:
    import onnx

_OPSET, _IR_VERSION = 20, 10
"""What the oldest ONNX Runtime that we allow can read."""
_LARGEST_GRAPH = 2**31
"""Bytes that a graph can hold itself: its format counts no further."""
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_LINEAR = torch.ops.aten.linear.default


def check_exportable(network: type[SequentialModel], title: str) -> None:
    """Refuse models that ONNX Runtime cannot compute."""
    if not network.can_be_exported:
        raise UsageError(f"{title} cannot be exported. Recommend from the run itself: `load(run)`.")


def export_run(
    run: Run,
    target: Path,
    *,
    int8: bool = False,
    approximate: bool = False,
    sampled_from: Dataset | None = None,
    overwrite: bool = False,
    force: bool = False,
) -> None:
    """Write the final model of a run, and the histories of a few users of `sampled_from` for the service's page."""
    model, items = run.load_model("final", torch.device("cpu")), run.path / "items.parquet"
    catalogue = Catalogue.read_table(items)
    if not force:  # without a name: the engine has a copy of all vectors, which must not stay
        refuse_degenerate(
            TorchEngine(model, Placement(torch.device("cpu"), None), run.untrained), catalogue.counts
        )
    export_model(
        model,
        catalogue,
        target,
        attributes=Attributes.of_table(items),
        name=run.plan.dataset_name,
        repeats=run.plan.repeats,
        int8=int8,
        approximate=approximate,
        samples=sample_users(sampled_from) if sampled_from else (),
        trained=run.trained,
        untrained=run.untrained,
        overwrite=overwrite,
    )


def sample_users(dataset: Dataset, count: int = 6, longest: int = 12) -> list[dict[str, Any]]:
    """The newest actions of users from all over the dataset, as the page offers them; ids are as in the log."""
    item_ids, user_ids = dataset.items()["id"].to_list(), dataset.users()["id"].to_list()
    chosen = np.linspace(0, dataset.num_users - 1, min(count, dataset.num_users)).astype(int).tolist()
    return [
        {
            "user_id": user_ids[user],
            "history": [item_ids[item - 1] for item in dataset.history(user)[-longest:].tolist()],
        }
        for user in chosen
    ]


def export_model(
    model: SequentialModel,
    catalogue: Catalogue,
    target: Path,
    *,
    name: str,
    repeats: Repeats = "exclude",
    int8: bool = False,
    approximate: bool = False,
    attributes: Attributes = NO_ATTRIBUTES,
    samples: Sequence[Mapping[str, Any]] = (),
    with_attention: bool = True,
    trained: Trained | None = None,
    untrained: Sequence[int] = (),
    overwrite: bool = False,
) -> None:
    """Write the folder that `onnx_engine` describes. `name` is that of the data set, `repeats` its rule.

    `trained` is what the weights have seen, and `untrained` are the numbers of items they have not.
    With `int8`, the encoder's matrices are stored and multiplied as whole numbers: smaller, faster, less exact.
    With `approximate`, an index is built, and its recall measured.
    Without attention it takes half as long: enough to rank items, not to show where the model looks.
    """
    check_exportable(type(model), type(model).__name__)
    model = model.cpu().eval()
    # Of most models also the table of their inputs.
    table, bias = (tensor.detach().float().numpy() for tensor in model.item_vectors())
    if int8 and table.nbytes >= _LARGEST_GRAPH:
        raise UsageError(
            f"The table of items has {table.nbytes:,} bytes; `int8=True` takes at most 2 GiB. Leave it out."
        )
    is_large = len(bias) >= LARGE_CATALOGUE
    with new_folder(target, MANIFEST, overwrite=overwrite) as folder:
        np.save(folder / "items.npy", table)
        known = bias.copy()
        known[[number - 1 for number in untrained]] = -np.inf
        np.save(folder / "bias.npy", known)
        catalogue.write(folder / "catalogue.json", in_files=is_large)
        attributes.write(folder / ATTRIBUTES)
        if samples:
            write_text(folder / "samples.json", json.dumps(list(samples), ensure_ascii=False))
        file = TableFile(table, folder / "items.npy")
        for file_name, graph in _graphs(model, file, int8=int8, with_attention=with_attention):
            file.take_out(graph)
            (folder / file_name).write_bytes(graph.SerializeToString())
        if is_large and table.size < 0.9 * _LARGEST_GRAPH:  # a byte for each number, and some for each block
            # Of untrained items, too: a bound must only not be too low.
            graph = search_graph(table[1 : len(bias) + 1], bias, opset=_OPSET, ir_version=_IR_VERSION)
            (folder / "search.onnx").write_bytes(graph.SerializeToString())
        index = build_index(folder, model.max_history, catalogue.counts) if approximate else None
        facts = {
            "format": "bert4rec model",
            "schema": SCHEMA,
            "written_by": f"bert4rec {__version__}",
            "name": name,
            "version": _version(folder, repeats),
            "items": len(catalogue),
            "max_history": model.max_history,
            "repeats": repeats,
            "int8": int8,
            **({"approximate": index._asdict()} if index else {}),
            **({"trained": asdict(trained)} if trained else {}),
        }
        write_manifest(folder, MANIFEST, facts)


class _Encoder(nn.Module):
    """[B, L] → [B, D]"""

    def __init__(self, model: SequentialModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, history: Tensor) -> Tensor:
        return self.model.queries(PaddedHistories(history))


class _Attention(_Encoder):
    """[1, L] → [layers, heads, L + 1]: where the query looks."""

    def forward(self, history: Tensor) -> Tensor:
        weights = self.model.attention(PaddedHistories(history))
        assert weights is not None
        return weights[0]


def _graphs(
    model: SequentialModel, file: TableFile, *, int8: bool, with_attention: bool
) -> "Iterator[tuple[str, onnx.ModelProto]]":
    from bert4rec.export.head import head_graph

    max_history = model.max_history
    example = torch.ones((2, min(3, max_history)), dtype=torch.int64)
    # A length that can only be 1 does not vary.
    length = {1: torch.export.Dim("length", min=1, max=max_history)} if max_history > 1 else {}
    # What makes whole numbers of a graph needs all of it.
    left_out = None if int8 else file
    encoder = _trace(_Encoder(model), example, {0: torch.export.Dim("batch"), **length}, "query", left_out)
    yield "encoder.onnx", _as_int8(encoder) if int8 else encoder
    yield "head.onnx", head_graph(opset=_OPSET, ir_version=_IR_VERSION)
    with torch.inference_mode():
        has_attention = model.attention(PaddedHistories(example)) is not None
    if has_attention and with_attention:
        yield "attention.onnx", _trace(_Attention(model), example[:1], length, "attention", file)


def _trace(
    module: _Encoder, example: Tensor, dynamic: dict[int, Any], output: str, left_out: TableFile | None
) -> "onnx.ModelProto":
    translations: dict[Callable[..., Any], Callable[..., Any]] = {
        _LINEAR: _multiply_and_add,
        _ATTENTION: _attend,
    }
    with torch.inference_mode(), _quiet():
        program = torch.onnx.export(
            module.eval(),
            (example,),
            dynamo=True,
            dynamic_shapes={"history": dynamic},
            input_names=["history"],
            output_names=[output],
            opset_version=_OPSET,
            verbose=False,
            custom_translation_table=translations,
        )
    assert program is not None
    if left_out:
        left_out.leave_out(program.model)
    inside = sum(each.nbytes for each in carried_by(program.model))
    if inside >= _LARGEST_GRAPH:
        raise UsageError(
            f"The model has weights of {inside:,} bytes besides the table of items; ONNX takes at most 2 GiB."
        )
    made = program.model_proto
    graph = made.graph
    graph.ClearField("value_info")  # shapes that readers infer, and that quantising would make wrong
    for part in (made, graph, *graph.node, *graph.input, *graph.output):
        part.ClearField("metadata_props")  # where in our source each node came from
    return made


def _operators() -> Any:
    from onnxscript import opset20

    assert opset20.version == _OPSET
    return opset20


def _multiply_and_add(x: Any, weight: Any, bias: Any) -> Any:
    """An affine map of all tokens as one matrix, so that ONNX Runtime adds the bias while it multiplies."""
    op = _operators()
    num_outputs, num_inputs = map(int, weight.shape)
    tokens = op.Reshape(x, op.Constant(value_ints=[-1, num_inputs]))
    shape = op.Concat(op.Shape(x, end=-1), op.Constant(value_ints=[num_outputs]), axis=0)
    return op.Reshape(op.Gemm(tokens, weight, bias, transB=1), shape)


def _attend(query: Any, key: Any, value: Any, visible: Any) -> Any:
    """Attention where every token sees at least one other or itself, as `PaddedLayout` arranges it.

    torch's own translation looks through all weights for those of tokens that see nothing.
    """
    op = _operators()
    scale = op.Constant(value_float=int(query.shape[-1]) ** -0.5)
    bias = op.Where(visible, op.Constant(value_float=0.0), op.Constant(value_float=float("-inf")))
    scores = op.MatMul(op.Mul(query, scale), op.Transpose(key, perm=[0, 1, 3, 2]))
    return op.MatMul(op.Softmax(op.Add(scores, bias), axis=-1), value)


def _as_int8(graph: "onnx.ModelProto") -> "onnx.ModelProto":
    import onnx

    with TemporaryDirectory(prefix="bert4rec-") as scratch, _quiet():
        from onnxruntime.quantization import (  # type: ignore[import-untyped]
            QuantType,
            quant_pre_process,
            quantize_dynamic,
        )

        traced, folded, small = (Path(scratch) / f"{name}.onnx" for name in ("traced", "folded", "small"))
        onnx.save(graph, traced)
        # Transposed weights must have become constants, or they are passed over.
        quant_pre_process(traced, folded, skip_symbolic_shape=True)
        onnx.save(_with_matrices_of_their_own(onnx.load(folded)), folded)
        # Matrix products alone: the table of items must stay the one that the head multiplies with.
        quantize_dynamic(folded, small, op_types_to_quantize=["MatMul", "Gemm"], weight_type=QuantType.QInt8)
        return onnx.load(small)


def _with_matrices_of_their_own(graph: "onnx.ModelProto") -> "onnx.ModelProto":
    """A copy for every product that shares its matrix, as those of two questions do.

    Quantising turns a matrix around where it meets it first, and then takes it for one that still has to be turned.
    """
    matrices = {tensor.name: tensor for tensor in graph.graph.initializer}
    taken: set[str] = set()
    for number, node in enumerate(graph.graph.node):
        if node.op_type == "Gemm" and (name := node.input[1]) in matrices:
            if name in taken:
                copy = graph.graph.initializer.add()
                copy.CopyFrom(matrices[name])
                copy.name = node.input[1] = f"{name}_{number}"
            taken.add(name)
    return graph


def _version(folder: Path, repeats: Repeats) -> str:
    """Short, and different for any other content, or other rules for the same weights."""
    sums = "".join(sha256_of(path) for path in sorted(folder.iterdir())) + (repeats == "keep") * repeats
    return hashlib.sha256(sums.encode()).hexdigest()[:8]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the messages that exporters have for their developers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
