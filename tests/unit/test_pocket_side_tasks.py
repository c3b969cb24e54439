"""What is read off the network costs what it should: the pointer's loss and the doubts, by hand."""

import math

import torch
from transformers import LlamaForCausalLM

from recipes.pocket.aux_losses import AUX_LOSS_NAMES, AuxHeads, ResidualStreams
from recipes.pocket.aux_targets import IGNORE_INDEX
from recipes.pocket.pocket_model import ModelShape, make_model

WIDTH, VOCABULARY, LENGTH = 256, 40, 6
ASKED = {
    "lines": [[0, 1, 2, 3, 4]],
    "pointers": [[4, 1, 3]],
    "words": [[1, 1, 0], [2, 0, 1]],
    "matches": [[2, 1]],
    "answers": [[2, 5, 6, IGNORE_INDEX]],
}


def network() -> LlamaForCausalLM:
    return make_model(ModelShape(layers=2), VOCABULARY, 0, 0)


def losses_of(tasks: AuxHeads, **asked: list[list[int]]) -> dict[str, float]:
    stream = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
    tensors = [
        torch.tensor({**ASKED, **asked}[name], dtype=torch.long).reshape(-1, len(rows[0]))
        for name, rows in ASKED.items()
    ]
    with torch.no_grad():
        found = tasks.losses(network(), ResidualStreams(stream, stream, stream, stream), *tensors)
    return dict(zip(AUX_LOSS_NAMES, found.tolist(), strict=True))


def test_who_looks_everywhere_alike_pays_for_the_share_that_is_the_source():
    tasks = AuxHeads(WIDTH)
    torch.nn.init.zeros_(tasks.query.weight)
    # The second is in the second row: its places are those of the flattened batch.
    found = losses_of(tasks, pointers=[[4, 1, 3], [LENGTH + 5, LENGTH, LENGTH + 1]])["pointers"]
    # Two of the four tokens before the first place are its source, one of the five before the second.
    assert math.isclose(found, (math.log(4 / 2) + math.log(5 / 1)) / 2, rel_tol=1e-5)


def test_who_knows_nothing_pays_a_bit_for_each_word_and_each_memory():
    tasks = AuxHeads(WIDTH)
    for reading in (tasks.echo, tasks.taken, tasks.match):
        torch.nn.init.zeros_(reading.weight)
        torch.nn.init.zeros_(reading.bias)
    found = losses_of(tasks)
    assert math.isclose(found["echoes"], math.log(2), rel_tol=1e-5)
    assert math.isclose(found["matches"], math.log(2), rel_tol=1e-5)
    assert math.isclose(found["taken"], 2 * math.log(2), rel_tol=1e-5)  # two words of one memory


def test_who_is_sure_and_right_pays_next_to_nothing():
    tasks = AuxHeads(WIDTH)
    torch.nn.init.zeros_(tasks.match.weight)
    torch.nn.init.constant_(tasks.match.bias, 20.0)
    assert losses_of(tasks)["matches"] < 1e-6
    assert losses_of(tasks, matches=[[2, 0]])["matches"] > 10


def test_what_is_not_asked_costs_nothing():
    tasks = AuxHeads(WIDTH)
    one = losses_of(tasks)
    unasked = [IGNORE_INDEX] * 4
    partly = losses_of(
        tasks, lines=[*ASKED["lines"], [1, *unasked]], answers=[[2, 5, 6, IGNORE_INDEX], [1, *unasked[:3]]]
    )
    assert all(math.isclose(one[name], partly[name], rel_tol=1e-5) for name in AUX_LOSS_NAMES)
    nothing = losses_of(tasks, **{name: [] for name in ASKED})
    assert set(nothing.values()) == {0.0}
