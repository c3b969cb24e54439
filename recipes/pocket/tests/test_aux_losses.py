"""The auxiliary losses, computed by hand: pointers, binary targets and tokens."""

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


def aux_losses(heads: AuxHeads, **asked: list[list[int]]) -> dict[str, float]:
    stream = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
    tensors = [
        torch.tensor({**ASKED, **asked}[name], dtype=torch.long).reshape(-1, len(rows[0]))
        for name, rows in ASKED.items()
    ]
    with torch.no_grad():
        found = heads.losses(network(), ResidualStreams(stream, stream, stream, stream), *tensors)
    return dict(zip(AUX_LOSS_NAMES, found.tolist(), strict=True))


def test_a_uniform_pointer_costs_the_log_share_of_the_source():
    heads = AuxHeads(WIDTH)
    torch.nn.init.zeros_(heads.query.weight)
    # The second is in the second row: it indexes the flattened batch.
    found = aux_losses(heads, pointers=[[4, 1, 3], [LENGTH + 5, LENGTH, LENGTH + 1]])["pointer"]
    # Two of the four tokens before the first index are its source, one of the five before the second.
    assert math.isclose(found, (math.log(4 / 2) + math.log(5 / 1)) / 2, rel_tol=1e-5)


def test_an_untrained_head_costs_one_bit_for_each_word_and_memory():
    heads = AuxHeads(WIDTH)
    for reading in (heads.echo, heads.taken, heads.match):
        torch.nn.init.zeros_(reading.weight)
        torch.nn.init.zeros_(reading.bias)
    found = aux_losses(heads)
    assert math.isclose(found["known_words"], math.log(2), rel_tol=1e-5)
    assert math.isclose(found["match"], math.log(2), rel_tol=1e-5)
    assert math.isclose(found["used_words"], 2 * math.log(2), rel_tol=1e-5)  # two words of one memory


def test_a_confident_right_prediction_costs_almost_nothing():
    heads = AuxHeads(WIDTH)
    torch.nn.init.zeros_(heads.match.weight)
    torch.nn.init.constant_(heads.match.bias, 20.0)
    assert aux_losses(heads)["match"] < 1e-6
    assert aux_losses(heads, matches=[[2, 0]])["match"] > 10


def test_ignored_targets_cost_nothing():
    heads = AuxHeads(WIDTH)
    one = aux_losses(heads)
    unasked = [IGNORE_INDEX] * 4
    partly = aux_losses(
        heads, lines=[*ASKED["lines"], [1, *unasked]], answers=[[2, 5, 6, IGNORE_INDEX], [1, *unasked[:3]]]
    )
    assert all(math.isclose(one[name], partly[name], rel_tol=1e-5) for name in AUX_LOSS_NAMES)
    nothing = aux_losses(heads, **{name: [] for name in ASKED})
    assert set(nothing.values()) == {0.0}
