"""The processes of one training, which torchrun starts: each has a copy of the model, on a GPU of its own.

The first one runs the training. The others follow it: they load the same model, and compute their share of
the gradient of each step. Without torchrun there is one process, and nothing is sent.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from memory_program.core.gpus import count_processes

_TIMEOUT = timedelta(days=30)  # the others wait while the first one samples and validates

T = TypeVar("T")


class _Group:
    """The rank of this process, and the number of processes that have joined."""

    rank = 0
    size = 1


def join_processes() -> bool:
    """Join the processes of torchrun, if it started this one; return True in all but the first."""
    if count_processes() > 1 and _Group.size == 1:
        has_gpu = torch.cuda.is_available()
        if has_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo", timeout=_TIMEOUT)
        _Group.rank, _Group.size = distributed.get_rank(), distributed.get_world_size()
    return _Group.rank > 0


def leave_processes() -> None:
    """End the group; in the first process, this ends the others' ``receive``."""
    if _Group.size > 1:
        send(None)
        distributed.destroy_process_group()
        _Group.rank, _Group.size = 0, 1


def send(message: object) -> None:
    """Send a message from the first process to the others; elsewhere nothing happens."""
    if _Group.size > 1 and _Group.rank == 0:
        distributed.broadcast_object_list([message], src=0)


def receive() -> Any:  # noqa: ANN401 - any message
    """Wait for the next message of the first process; None is its last one."""
    box: list[object] = [None]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def own_share(items: Sequence[T]) -> Sequence[T]:
    """Return every n-th item, so that each one is in the share of one process."""
    return items[_Group.rank :: _Group.size]


def add_up(numbers: Sequence[float]) -> list[float]:
    """Add up each of some numbers over the processes."""
    if _Group.size == 1:
        return list(numbers)
    sums = torch.tensor(numbers, dtype=torch.float64)
    distributed.all_reduce(sums)
    return sums.tolist()


def add_up_gradients(weights: Sequence[Tensor]) -> None:
    """Add up the gradients of weights over the processes, in place."""
    if _Group.size == 1:
        return
    for weight in weights:
        if weight.grad is None:  # no sample of this process
            weight.grad = torch.zeros_like(weight)
        distributed.all_reduce(weight.grad)


def gather(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenate the tensors of all processes, those that are not None; None if there are none."""
    known = [tensor for tensor in tensors if tensor is not None]
    if _Group.size > 1:
        found: list[Any] = [None] * _Group.size
        distributed.all_gather_object(found, [tensor.cpu() for tensor in known])
        known = [tensor for of_process in found for tensor in of_process]
    return torch.cat(known) if known else None
