"""Rows of a dataset from the file that its hub keeps, Parquet, or from JSON."""

import hashlib
import io
from pathlib import Path
from typing import Any

from locomo.benchmark_errors import DatasetError
from locomo.json_at import JsonAt
from locomo.locomo import decode_json


def read_rows(path: Path) -> tuple[list[JsonAt], str]:
    """Read the rows of a .parquet, .jsonl or .json file (a list), and the SHA-256 of its bytes.

    Raises:
        DatasetError: the file is missing or damaged, has another ending, or pyarrow is not installed.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(
            f"cannot read {str(path)!r} ({error.strerror}); name a .parquet, .jsonl or .json file"
        ) from error
    match path.suffix:
        case ".parquet":
            try:
                import pyarrow as pa
                import pyarrow.parquet as pq  # an extra, and slow to import
            except ImportError as error:
                raise DatasetError(
                    f"{path.name}: Parquet needs pyarrow: pip install 'memory-program[train]', or name the "
                    "same rows as .jsonl"
                ) from error
            try:
                table: list[Any] = pq.read_table(io.BytesIO(content)).to_pylist()  # Any: what the file holds
            except pa.ArrowException as error:
                raise DatasetError(f"{path.name}: is no Parquet file ({error}); get it again") from error
            rows = [JsonAt(row, f"{path.name}: row {i}") for i, row in enumerate(table, 1)]
        case ".jsonl":
            places = [
                (f"{path.name}: line {i}", line)
                for i, line in enumerate(content.splitlines(), 1)
                if line.strip()
            ]
            rows = [JsonAt(decode_json(line, place), place) for place, line in places]
        case ".json":
            rows = JsonAt(decode_json(content, path.name), path.name).elements("row")
        case _:
            raise DatasetError(f"{str(path)!r} is none of .parquet, .jsonl, .json; name such a file")
    if not rows:
        raise DatasetError(f"{path.name}: has no row; name another file")
    return rows, hashlib.sha256(content).hexdigest()
