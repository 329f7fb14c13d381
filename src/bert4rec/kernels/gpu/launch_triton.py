"""Kernels that can be compiled ahead of their first launch, several at the same time."""

import inspect
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import triton

from bert4rec.kernels.support import loading_compiler

SIZES = {"num_rows", "num_parts", "num_sums"}
"""Numbers by which nothing is found in memory, by the names that kernels give them."""


class Kernel:
    """A kernel, launched as in Triton: `kernel[grid](...)`. While compiling ahead it is compiled but not run."""

    only_compiled = False

    def __init__(self, function: Callable[..., Any]) -> None:
        # For multiples of 16 Triton would compile once more, for the sake of addresses.
        sizes = [name for name in inspect.signature(function).parameters if name in SIZES]
        self._compiled = triton.jit(function, do_not_specialize=sizes)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        launch = partial(self._compiled.warmup, grid=grid) if Kernel.only_compiled else self._compiled[grid]
        return partial(launch, enable_fp_fusion=True)  # Triton is about to change its mind on the default.


class _Compilers(ThreadPoolExecutor):
    """Threads in which kernels are compiled and also loaded, for which Triton compiles once more."""

    def __init__(self) -> None:
        super().__init__(
            os.cpu_count(), initializer=torch.cuda.set_device, initargs=(torch.cuda.current_device(),)
        )

    def submit(self, compiled: Callable[[], Any]) -> Future[Any]:  # type: ignore[override]
        def loaded() -> Any:
            kernel = compiled()
            kernel.run  # noqa: B018 (to read it is what loads the kernel)
            return kernel

        return super().submit(loaded)


@Kernel
def _nothing_kernel() -> None:
    pass


def load_compiler(device: torch.device) -> None:
    """Let Triton look up what all kernels need, such as the whereabouts of CUDA and a hash of its own files."""
    with torch.cuda.device(device):
        _nothing_kernel[(1,)]()


@contextmanager
def compiling_ahead(device: torch.device) -> Iterator[None]:
    """Meanwhile nothing that kernels are to write is written. In the end all that were met have been compiled.

    What is computed must not depend on it. Triton compiles one kernel after the other if it is left alone.
    """
    # What Triton looks up once it would look up several times if several threads asked at the same time.
    loading_compiler(device).join()
    if not hasattr(triton, "AsyncCompileMode"):
        yield
        return
    # On the way back too, kernels must be met by this thread, for which they are collected.
    with (
        _Compilers() as threads,
        triton.AsyncCompileMode(threads),
        torch.autograd.set_multithreading_enabled(False),
    ):
        Kernel.only_compiled = True
        try:
            yield
        finally:
            Kernel.only_compiled = False
