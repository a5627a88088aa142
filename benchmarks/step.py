"""What a training step costs the host: operations, waits, shapes, and the arithmetic of the device.

``python -m benchmarks step`` counts them for one process, and for several ranks with ``--ranks``.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from aam.config import PretrainConfig
from aam.data.batch import PaddedBatch
from aam.device import attention
from aam.device.distributed import SINGLE, World, process_group, start_ranks
from aam.device.environment import rank_of
from aam.device.measure import product_rate
from aam.device.platform import Facts
from aam.device.precision import resolve_precision
from aam.errors import RunError
from aam.files.atomic import read_json, write_text
from aam.options import LARGEST, RunConfig, to_dict
from aam.training.decisions import PretrainingSteps, make_steps
from benchmarks.config import StepConfig

UNTIMED_STEPS = 2


def count_flops(work: Callable[[], object]) -> int:
    """Return the floating-point operations of the matrix products that `work` carries out,
    attention included.
    """
    # torch's own counter lacks the CPU kernels.
    aten, name = torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"
    forward = {getattr(aten, name): lambda *s, **_: sdpa_flop_count(*s[:3])}
    backward = {getattr(aten, f"{name}_backward"): lambda *s, **_: sdpa_backward_flop_count(*s[:4])}
    with FlopCounterMode(display=False, custom_mapping=forward | backward) as counter:
        work()
    return int(counter.get_total_flops())


# --- operations ----------------------------------------------------------------------------------

# Operations that start no kernel: views, memory that is not filled, and numbers of the host.
VIEWS = frozenset(
    """
    view _unsafe_view t transpose permute unsqueeze squeeze expand slice select split unbind detach
    alias as_strided split_with_sizes _reshape_alias empty empty_like new_empty unflatten lift_fresh
    empty_strided new_empty_strided diagonal scalar_tensor promote_types _record_function_enter_new
    _record_function_exit
    """.split()  # noqa: SIM905
)
# Operations whose result the host needs before it goes on, and tensors made of the host's numbers,
# whose copy to a device cannot be captured.
WAITS = frozenset(
    ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "lift_fresh")
)

Operation = tuple[str, tuple[tuple[int, ...], ...]]


def waits(name: str, args: Sequence[Any]) -> bool:
    """Return whether the host waits in an operation of torch with these arguments."""
    indices = args[1] if name.startswith("index") and isinstance(args[1], (list, tuple)) else ()
    by_mask = any(index is not None and index.dtype == torch.bool for index in indices)
    return by_mask or name in WAITS


class Trace(TorchDispatchMode):
    """Collect the operations inside a ``with`` block, of autograd too.

    Attributes
    ----------
    operations : list of (name, shapes of the results)
        Without those that start no kernel.
    waits : int
        How often the host waited.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self.waits = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and note it."""
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, (tuple, list)) else (result,)
        shapes = tuple(tuple(value.shape) for value in results if isinstance(value, Tensor))
        name = func._schema.name.split("::")[1]  # type: ignore[attr-defined]
        if name not in VIEWS:
            self.operations.append((name, shapes))
        self.waits += waits(name, args)
        return result


def step_numbers(steps: PretrainingSteps, batches: Sequence[PaddedBatch]) -> dict[str, int]:
    """Cost of a step for the host, and the number of shapes of some batches.

    Returns
    -------
    dict
        ``operations_per_step`` that start a kernel, ``host_waits_per_step``, ``distinct_shapes`` of
        the batches, ``graphs`` (shapes that can be captured; several ranks have a graph for each
        part of a step).
    """
    task = steps.task
    prepared = [task.prepare(batch, number) for number, batch in enumerate(batches)]
    with steps.restored(), Trace() as trace:
        (steps.take_step or steps.setup.take)(prepared[:1])
    shapes = {batch.batch.shape() for batch in prepared}
    captured = {task.shape(batch) for batch in prepared} - {None}
    host = {"operations_per_step": len(trace.operations), "host_waits_per_step": trace.waits}
    return {**host, "distinct_shapes": len(shapes), "graphs": len(captured)}


def make_counted_steps(
    config: PretrainConfig, constant: bool, world: World = SINGLE
) -> PretrainingSteps:
    """Return steps of pretraining, with `constant` in batches of constant shape, all of whose ASVs
    are encoded at once.
    """
    if constant:
        at_once = config.runtime.asv_chunk_size or LARGEST
        config = replace(config, runtime=replace(config.runtime, asv_chunk_size=at_once))
    steps = make_steps(config, world=world)
    if constant:
        steps.task.use_constant_shapes()
    return steps


@contextlib.contextmanager
def attention_of_gpu(constant: bool) -> Iterator[None]:
    """Let a CPU compute attention by one operation, as a GPU does, if `constant`."""
    limits = dict(attention.SHORT)
    if constant:
        attention.SHORT.clear()
    try:
        yield
    finally:
        attention.SHORT.update(limits)


def step_cost(config: PretrainConfig, repeats: int, constant: bool, world: World = SINGLE) -> Facts:
    """Return the numbers of `step_numbers` and, of one process, the rate of arithmetic as a
    ``share`` of that of a matrix product in the same precision.
    """
    with attention_of_gpu(constant):
        steps = make_counted_steps(config, constant, world)
        steps.take(UNTIMED_STEPS, 0)
        times, batches = steps.take(repeats, 1)
        numbers: Facts = {"ranks": world.size, **step_numbers(steps, batches)}
        if world.size > 1:
            return numbers
        middle = sorted(range(repeats), key=times.__getitem__)[(repeats - 1) // 2]
        flops = count_flops(lambda: steps.step(batches[middle]))
    # On a CPU float32, as a product in fp16 takes minutes there.
    wide, on_cpu = steps.task.config.model.trains_in_bf16, steps.device.type == "cpu"
    dtype = torch.float32 if on_cpu else resolve_precision(config.runtime, steps.device, wide)
    product, rate = product_rate(steps.device, dtype=dtype), flops / times[middle]
    rates = {"flops": flops, "flops_per_s": rate, "product_flops_per_s": product}
    return {**numbers, **rates, "share": rate / product}


def count_on_ranks(config: StepConfig) -> Facts:
    """Return the numbers of `step_numbers` of one of several ranks, which are started here.

    Raises
    ------
    RunError
        A rank fails.
    """
    with tempfile.TemporaryDirectory() as temporary:
        options, numbers = (Path(temporary) / name for name in ("config.json", "numbers.json"))
        write_text(options, json.dumps({"config": to_dict(config)}))
        words = ["step", "--config", str(options), "--output", str(numbers)]
        processes = start_ranks(config.ranks, words, "benchmarks")
        try:
            statuses = [process.wait() for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(statuses):
            raise RunError(f"--ranks {config.ranks}: the processes ended with {statuses}")
        facts: Any = read_json(numbers)
    return dict(facts)


def count_step(config: StepConfig) -> None:
    """Run ``python -m benchmarks step``: print the numbers, and write them to ``--output``."""
    runtime = RunConfig(**vars(config.runtime))
    training = PretrainConfig(config.data, config.model, config.train, runtime)
    if config.ranks > 1 and rank_of(os.environ) is not None:
        training = replace(training, runtime=replace(runtime, distributed=True))
        with process_group(training.runtime) as world:
            numbers = step_cost(training, config.steps, config.constant_shapes, world)
            if world.is_main and config.output is not None:
                write_text(config.output, json.dumps(numbers))
        return
    report = step_cost(training, config.steps, config.constant_shapes)
    if config.ranks > 1:
        report["of_ranks"] = count_on_ranks(config)
    print(json.dumps(report, indent=1))
    if config.output is not None:
        write_text(config.output, json.dumps(report, indent=1) + "\n")
