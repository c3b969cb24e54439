"""Versions of a shared array against plain lists, through branches of branches."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_program.bank.postings import SharedArray


@settings(deadline=None)
@given(
    first=st.integers(0, 3000),
    writes=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 1500)), max_size=25),
)
def test_every_version_of_an_array_holds_what_a_list_would(first: int, writes: list[tuple[int, int]]) -> None:
    values = np.arange(first, dtype=np.int32)
    versions = [(SharedArray(values), list(range(first)))]
    for where, count in writes:
        array, expected = versions[where % len(versions)]
        versions.append((array.extended(range(count)), [*expected, *range(count)]))
    for array, expected in versions:
        assert array.values.tolist() == expected
    assert values.tolist() == list(range(first))
