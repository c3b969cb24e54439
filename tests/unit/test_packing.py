import pytest
import torch

from memory_program.rl.trainer.packing import Sample, pack_samples

LONG, SHORT = (1, 2, 3, 4), (5, 6)


def test_equal_completions_of_a_prompt_are_packed_once():
    samples = [Sample(LONG, (7, 8)), Sample(LONG, (9,)), Sample(LONG, (7, 8))]
    (packed,) = pack_samples(samples, 100)
    assert packed.tokens_T.tolist() == [1, 2, 3, 4, 7, 8, 9]
    assert packed.positions_T.tolist() == [0, 1, 2, 3, 4, 5, 4]
    assert packed.targets_N.tolist() == [7, 8, 7, 8, 9]
    assert packed.samples_N.tolist() == [0, 0, 2, 2, 1]
    assert packed.predictors_N.tolist() == [3, 4, 3, 4, 3]  # the first token is predicted by the prompt


def test_a_completion_attends_to_its_prompt_and_itself():
    (packed,) = pack_samples([Sample(LONG, (7, 8)), Sample(LONG, (9,)), Sample(SHORT, (7,))], 100)
    seen = (packed.mask(torch.float32) == 0).int()
    assert packed.tokens_T.tolist() == [1, 2, 3, 4, 7, 8, 9, 5, 6, 7]
    assert seen[5].tolist() == [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert seen[6].tolist() == [1, 1, 1, 1, 0, 0, 1, 0, 0, 0]
    assert seen[1].tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert seen[9].tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]


def test_a_new_sequence_repeats_the_prompt():
    samples = [Sample(LONG, (number, number)) for number in range(7, 11)]
    sequences = pack_samples(samples, 8)
    assert [packed.tokens_T.tolist() for packed in sequences] == [
        [1, 2, 3, 4, 7, 7, 8, 8],
        [1, 2, 3, 4, 9, 9, 10, 10],
    ]
    assert [packed.samples_N.tolist() for packed in sequences] == [[0, 0, 1, 1], [2, 2, 3, 3]]


@pytest.mark.parametrize("max_tokens", [1, 1000])
def test_samples_are_never_cut_and_empty_ones_are_left_out(max_tokens):
    sequences = pack_samples([Sample(LONG, (7, 8)), Sample(SHORT, ()), Sample(SHORT, (9,))], max_tokens)
    assert sorted(token for packed in sequences for token in packed.targets_N.tolist()) == [7, 8, 9]
    assert len(sequences) == (2 if max_tokens == 1 else 1)
