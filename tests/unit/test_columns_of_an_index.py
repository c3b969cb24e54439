"""Columns of an index against plain lists, through forks of forks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_program.bank.postings import GrowingArray

_writes = st.lists(
    st.tuples(st.sampled_from(["extend", "replace", "fork"]), st.integers(0, 2**20), st.integers(0, 1500)),
    max_size=25,
)


@settings(deadline=None)
@given(first=st.integers(0, 3000), writes=_writes)
def test_a_column_and_its_forks_hold_what_lists_would(first: int, writes: list[tuple[str, int, int]]) -> None:
    values = np.arange(first, dtype=np.int32)
    columns = [(GrowingArray(values), list(range(first)))]
    for what, where, count in writes:
        column, told = columns[where % len(columns)]
        if what == "extend":
            column.extend(range(count))
            told.extend(range(count))
        elif what == "replace" and told:
            column.replace(where % len(told), -1)
            told[where % len(told)] = -1
        elif what == "fork":
            columns.append((column.fork(), list(told)))
    for column, told in columns:
        assert len(column) == len(told)
        assert column.values.tolist() == told
        some = np.arange(0, len(told), 7, dtype=np.int32)
        assert column.at(some).tolist() == told[::7]
        assert [column[position] for position in some] == told[::7]
    assert values.tolist() == list(range(first))
