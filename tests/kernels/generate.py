"""Write the Triton kernels that inductor makes of a training step for an AMD GPU, without one.

``python generate.py OUTPUT --arch gfx942`` needs torch 2.7.1 as pip installs it on Linux, which
brings Triton 3.3.1, and aam. torch traces the step on the CPU, forward and backward, with attention
by ``math``. Inductor then gets both graphs as graphs of a GPU and is told the properties of one, as
in the ROCm build of torch. Nothing is compiled here; `build` does that.

Two things differ from a run on the GPU. Inductor pads odd shapes of matrix products where that was
faster when it was timed; here nothing can be timed and nothing is padded. And it adds variants of a
reduction when the compiled one leaves the GPU empty, by the registers that the driver reports.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch._inductor.config as inductor
import triton
from torch import Tensor, fx
from torch._dynamo import device_interface
from torch._guards import TracingContext, tracing
from torch._inductor import compile_fx
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _triton

from aam.config import DataConfig, FineTuneConfig, ModelConfig, PretrainConfig
from aam.data.batch import PaddedBatch
from aam.engine.task import Terms
from aam.options import LARGEST, RunConfig
from aam.training.decisions import make_steps

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "examples" / "infant-age"
GPU = torch.device("cuda:0")

# Compute units, and the cache of the second level in bytes, of the MI300A and of half an MI250X.
UNITS = {"gfx942": (228, 1 << 22), "gfx90a": (110, 1 << 23)}

# Widths of the networks, heads and precision.
NETWORKS = {"96-float32": (96, 4, "none"), "512-bf16": (512, 8, "bf16")}
TASKS = ("pretraining", "supervised")


class Kernel(NamedTuple):
    """A kernel: its source, the types of its arguments, those that are multiples of 16, and for
    each variant the sizes of its blocks and options of the compiler.
    """

    source: str
    signature: dict[str, str]
    aligned: list[str]
    variants: list[dict[str, Any]]


def properties(arch: str) -> types.SimpleNamespace:
    """The properties of a GPU that inductor reads."""
    units, cache = UNITS[arch]
    return types.SimpleNamespace(
        name=arch,
        gcnArchName=f"{arch}:sramecc+:xnack-",
        multi_processor_count=units,
        major=9,
        minor=4 if arch == "gfx942" else 0,
        warp_size=64,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        shared_memory_per_block=65536,
        total_memory=1 << 37,
        L2_cache_size=cache,
    )


# --- the step ------------------------------------------------------------------------------------


def training_step(task_name: str, network_name: str) -> tuple[Callable[..., Terms], Any, Any]:
    """Return the function that a run compiles, and its arguments: network and batch."""
    width, heads, precision = NETWORKS[network_name]
    kind = PretrainConfig if task_name == "pretraining" else FineTuneConfig
    # All ASVs of a batch are encoded at once, as on a GPU.
    runtime = RunConfig(
        device="cpu",
        threads=1,
        attn_implementation="math",
        mixed_precision=precision,
        asv_chunk_size=LARGEST,
    )
    config = kind(
        data=DataConfig(table=STUDY / "table.biom", tree=str(STUDY / "tree.nwk")),
        model=ModelConfig(embedding_dim=width, attention_heads=heads),
        runtime=runtime,
    )
    task = make_steps(config).task
    task.use_constant_shapes()
    batch = task.with_distances(task.prepare(next(iter(task.batches(0, 0))), 0).batch)
    network = task.bf16_network() if task.has_bf16_weights else task.model

    def losses(network: torch.nn.Module, batch: PaddedBatch) -> Terms:
        return task.terms(network(batch).full(), batch)

    return losses, network, dataclasses.replace(batch, sample_ids=())


def on_gpu(value: Any) -> Any:
    """Return the GPU for the CPU, and any other value as it is."""
    is_cpu = isinstance(value, torch.device) and value.type == "cpu"
    return GPU if is_cpu else value


def graph_of_gpu(graph: fx.GraphModule, mode: FakeTensorMode) -> fx.GraphModule:
    """Return a graph whose constants and new tensors lie on the GPU."""
    moved = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    for node in moved.graph.nodes:
        node.args = fx.node.map_aggregate(node.args, on_gpu)
        node.kwargs = fx.node.map_aggregate(node.kwargs, on_gpu)
        # Inductor computes the shapes and strides of all nodes anew.
        node.meta.pop("val", None)
        if node.op == "get_attr" and isinstance(getattr(graph, node.target), Tensor):
            setattr(moved, node.target, without_data(getattr(graph, node.target), mode))
    moved.recompile()
    return moved


def without_data(value: Any, mode: FakeTensorMode) -> Any:
    """Return a tensor of the GPU of the same shape, strides and type, without data."""
    if not isinstance(value, Tensor):
        return value
    shape, strides = (tuple(map(int, sizes)) for sizes in (value.shape, value.stride()))
    with mode, torch.no_grad():
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=GPU)


# --- inductor on a GPU that is not there -----------------------------------------------------------


class Driver:
    """Stands for Triton's driver of an AMD GPU."""

    def __init__(self, arch: str) -> None:
        self.target = triton.backends.compiler.GPUTarget("hip", arch, 64)

    def get_current_target(self) -> Any:
        """The target of the compiler."""
        return self.target

    def get_current_device(self) -> int:
        """The first GPU."""
        return 0


def gpu_patches(arch: str, requests: Requests) -> Iterator[Any]:
    """Yield what lets inductor believe in an AMD GPU while it works."""
    facts = properties(arch)
    cuda = device_interface.CudaInterface
    yield mock.patch.multiple(torch.version, hip="6.3.42131", cuda=None)
    yield mock.patch.multiple(
        torch.cuda,
        get_device_properties=lambda device=None: facts,
        current_device=lambda: 0,
        device_count=lambda: 1,
        get_device_capability=lambda device=None: (facts.major, facts.minor),
    )
    yield mock.patch.multiple(
        cuda,
        get_device_properties=staticmethod(lambda device=None: facts),
        current_device=staticmethod(lambda: 0),
        synchronize=staticmethod(lambda device=None: None),
    )
    yield mock.patch.object(
        cuda.Worker, "get_device_properties", staticmethod(lambda device=None: facts)
    )
    yield mock.patch.multiple(_triton, has_triton=lambda: True, triton_hash_with_backend=lambda: "")
    yield mock.patch("torch._inductor.scheduler.has_triton", return_value=True)
    yield mock.patch.object(triton_helpers, "set_driver_to_gpu", return_value=None)
    # The method asks the driver for the GPU of its tensor; the operation does not.
    yield mock.patch.object(
        Tensor, "copy_", lambda self, source: torch.ops.aten.copy_.default(self, source)
    )
    yield mock.patch.object(triton, "compile", requests.compile)
    yield mock.patch.object(triton_heuristics.CachingAutotuner, "precompile", precompile)
    yield inductor.patch({"triton.cudagraphs": False, "compile_threads": 1})


class Requests:
    """What inductor asks Triton to compile: kernels with their variants."""

    def __init__(self) -> None:
        # Forward and backward may each have a kernel of one name: the facts are the key.
        self.kernels: dict[str, Kernel] = {}

    def compile(self, source: Any, target: Any, options: dict[str, Any]) -> Any:
        """Stands for `triton.compile`: keep what is asked for, and compile nothing."""
        names = source.fn.arg_names
        aligned = [names[place] for (place,) in source.attrs]
        assert all(facts == [["tt.divisibility", 16]] for facts in source.attrs.values())
        assert not options.pop("debug")
        assert not options.pop("sanitize_overflow")
        sizes = {names[place]: value for (place,), value in source.constants.items()}
        kernel = Kernel(source.fn.src, source.signature, aligned, [])
        known = self.kernels.setdefault(repr(kernel), kernel)
        known.variants.append({**sizes, **options})
        return types.SimpleNamespace(hash="0" * 64)


def precompile(autotuner: Any, *_: Any, **__: Any) -> None:
    """Stands for `CachingAutotuner.precompile`: ask for each variant, and launch nothing."""
    autotuner._precompile_worker()
    autotuner.launchers = [lambda *_, **__: None]


def generate(task_name: str, network_name: str, arch: str) -> list[Kernel]:
    """Return the kernels of a training step."""
    requests = Requests()
    losses, network, batch = training_step(task_name, network_name)
    triton.runtime.driver.set_active(Driver(arch))

    def inner(graph: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        mode = FakeTensorMode()
        moved = graph_of_gpu(graph, mode)
        with contextlib.ExitStack() as stack:
            for patch in gpu_patches(arch, requests):
                stack.enter_context(patch)
            stack.enter_context(tracing(TracingContext(mode)))
            stack.enter_context(torch.no_grad())
            without = [without_data(value, mode) for value in inputs]
            compile_fx.compile_fx_inner(moved, without, **{**options, "cudagraphs": False})

        def run(arguments: list[Any]) -> Any:
            """Compute on the CPU what the kernels would, so that backward can be traced."""
            outputs = graph(*arguments)
            arguments.clear()
            return outputs

        run._boxed_call = True
        return run

    def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_fx.compile_fx(graph, inputs, inner_compile=inner)

    no_caches = torch._functorch.config.patch(enable_autograd_cache=False)
    with inductor.patch(fx_graph_cache=False), no_caches, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        terms = torch.compile(losses, fullgraph=True, dynamic=False, backend=backend)(
            network, batch
        )
        torch.stack([total for total, _ in terms.values()]).sum().backward()
    return [*requests.kernels.values()]


# --- the file ------------------------------------------------------------------------------------

HEADER = '''"""Kernels of a training step: {task}, network {network}, {arch}.

Written by inductor of torch {torch} for Triton {triton}; not edited by hand. To write it anew:
``nox -s kernels_all -- --write`` (tests/kernels/generate.py).
"""

import triton
import triton.language as tl
from kernel import kernel
from triton.language.extra import libdevice
import triton_helpers
from triton_helpers import math as tl_math
'''


def text_of(kernels: list[Kernel], task: str, network: str, arch: str) -> str:
    """Return the kernels as a module of Python, which `build` compiles."""
    versions = {"torch": torch.__version__.split("+")[0], "triton": triton.__version__}
    parts = [HEADER.format(task=task, network=network, arch=arch, **versions)]
    for each in kernels:
        variants = ",\n    ".join(map(repr, each.variants))
        parts.append(
            f"@kernel(\n    {each.signature!r},\n    {each.aligned!r},\n    {variants},\n)\n"
            f"@triton.jit\n{each.source.rstrip()}\n"
        )
    return "\n\n".join(parts)


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--task", choices=TASKS, default=TASKS[0])
    parser.add_argument("--network", choices=NETWORKS, default=next(iter(NETWORKS)))
    parser.add_argument("--arch", choices=UNITS, default="gfx942")
    given = parser.parse_args()
    names = given.task, given.network, given.arch
    given.output.write_text(text_of(generate(*names), *names), encoding="utf-8")


if __name__ == "__main__":
    main()
