"""What is read off the network costs what it should: the pointer's loss, by hand."""

import math

import torch
from transformers import LlamaForCausalLM

from memory_program.pocket.asking import UNASKED
from memory_program.pocket.model import Shape, make_model
from memory_program.pocket.side_tasks import SideTasks, Streams

WIDTH, VOCABULARY = 256, 40


def network() -> LlamaForCausalLM:
    return make_model(Shape(layers=2), VOCABULARY, 0, 0)


def losses_of(
    lines: list[list[int]], pointers: list[list[int]], tasks: SideTasks, segments: list[int] | None = None
) -> list[float]:
    stream = torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(0))
    asked = torch.arange(len(lines))
    with torch.no_grad():
        found = tasks.losses(
            network(),
            Streams(stream, stream, stream),
            torch.tensor([segments or [1] * 6] * 2),
            asked,
            torch.tensor(lines),
            torch.tensor(pointers),
        )
    return found.tolist()


def test_who_looks_everywhere_alike_pays_for_the_share_that_is_the_source():
    tasks = SideTasks(WIDTH)
    torch.nn.init.zeros_(tasks.query.weight)
    (*_, pointing) = losses_of([[1, 2, 3, 4]], [[0, 4, 1, 3], [1, 5, 0, 1]], tasks)
    # Two of the four tokens before the first place are its source, one of the five before the second.
    assert math.isclose(pointing, (math.log(4 / 2) + math.log(5 / 1)) / 2, rel_tol=1e-5)


def test_what_is_not_asked_costs_nothing():
    tasks = SideTasks(WIDTH)
    asked = losses_of([[1, 2, 3, 4]], [[0, 4, 1, 3]], tasks)
    partly = losses_of([[1, 2, 3, 4], [UNASKED, UNASKED, UNASKED, UNASKED]], [[0, 4, 1, 3]], tasks)
    assert all(math.isclose(one, other, rel_tol=1e-5) for one, other in zip(asked, partly, strict=True))


def test_who_shares_a_row_does_not_look_at_what_others_have_of_their_own():
    tasks = SideTasks(WIDTH)
    torch.nn.init.zeros_(tasks.query.weight)
    (*_, pointing) = losses_of([[1, 2, 3, 4]], [[0, 5, 0, 1]], tasks, segments=[0, 0, 1, 1, 2, 2])
    # Of the five tokens before the place, two are another question's.
    assert math.isclose(pointing, math.log(3), rel_tol=1e-5)
