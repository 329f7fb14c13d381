"""Libraries that are optional to install, and what to say if one is missing."""

from importlib.util import find_spec

from bert4rec.errors import UsageError


def require_torch() -> None:
    """Refuse to go on without PyTorch; does not load it."""
    if find_spec("torch") is None:
        raise UsageError("PyTorch is required: pip install 'bert4rec[train]'.")


def require_exporters() -> None:
    """Refuse to go on without what an export needs; does not load it."""
    if not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        raise UsageError("ONNX is required: pip install 'bert4rec[export,serve]'.")


def require_faiss() -> None:
    """Refuse to go on without what approximate search needs; does not load it."""
    if find_spec("faiss") is None:
        raise UsageError("faiss is required for approximate search: pip install 'bert4rec[ann]'.")


def require_tuner() -> None:
    """Refuse to go on without what a search for settings needs; does not load it."""
    if not all(map(find_spec, ("optuna", "matplotlib"))):
        raise UsageError("Optuna and matplotlib are required: pip install 'bert4rec[train,tune]'.")


def require_transformers() -> None:
    """Refuse to measure against a library that is not there; does not load it. No extra: nothing else needs it."""
    if find_spec("transformers") is None:
        raise UsageError("transformers is required: pip install transformers.")


def require_tracing() -> None:
    """Refuse to export traces without OpenTelemetry; does not load it."""
    try:
        is_there = all(map(find_spec, ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")))
    except ModuleNotFoundError:  # not even the package that they are in
        is_there = False
    if not is_there:
        raise UsageError("OpenTelemetry is required to export traces: pip install 'bert4rec[otel]'.")


def require_spark() -> None:
    """Refuse to go on without what Spark needs in Python; does not load it."""
    if not all(map(find_spec, ("pyspark", "pyarrow", "pandas"))):
        raise UsageError("pyspark is required: pip install 'bert4rec[spark]'.")
