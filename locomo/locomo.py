"""LoCoMo from the network, from a cache or from a path; and one's own conversations in the same schema."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from locomo.benchmark_errors import DatasetError
from locomo.downloads import download
from locomo.locomo_schema import parse_locomo
from locomo.types import Benchmark, Conversation

LOCOMO_FILE = "locomo10.json"
LOCOMO_SHA256 = "79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4"
LOCOMO_BASE_URL = (
    "https://raw.githubusercontent.com/snap-research/LoCoMo/3eb6f2c585f5e1699204e3c3bdf7adc5c28cb376/data"
)
"""The released file's folder at a fixed commit (CC BY-NC 4.0: downloaded for the user, never shipped)."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Conversations, and which bytes they were read from.

    ``is_modified`` says that the file passes for a published one without being it; ``variant`` which one was
    taken of a dataset that comes in several; ``benchmark`` how its questions are scored;
    ``dangling_evidence`` the evidence ids that name no turn and were left out.
    """

    conversations: tuple[Conversation, ...]
    sha256: str
    is_modified: bool
    name: str
    variant: str = ""
    benchmark: Benchmark = Benchmark.LOCOMO
    dangling_evidence: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The version in a score's signature: ``79fa87e9``, ``0c3f9d11-modified``, ``7x20-5b2de0c1``."""
        parts = [self.variant, self.sha256[:8], "modified" if self.is_modified else ""]
        return "-".join(part for part in parts if part)


def load_locomo(
    path: Path | None = None,
    *,
    allow_modified: bool = False,
    base_url: str = LOCOMO_BASE_URL,
    cache_dir: Path | None = None,
) -> Dataset:
    """Read the official LoCoMo benchmark.

    Args:
        path: A copy of ``locomo10.json``; None takes the cached one, or downloads it.
        allow_modified: Accept a copy at ``path`` whose hash is not the official one, and mark it.
        base_url: The folder to download from.
        cache_dir: Where the download is kept; the user's own cache folder unless given.

    Raises:
        DatasetError: no file and no network, a modified file, or one that is not in the schema.
    """
    path = path or download_locomo(base_url=base_url, cache_dir=cache_dir)
    dataset = read_dataset(path)
    is_modified = dataset.sha256 != LOCOMO_SHA256
    if is_modified and not allow_modified:
        raise DatasetError(
            f"{str(path)!r} is not the official LoCoMo file: its sha256 is {dataset.sha256}, expected "
            f"{LOCOMO_SHA256}; get that one from {base_url}/{LOCOMO_FILE}, or accept this one with "
            "--allow-modified"
        )
    return Dataset(dataset.conversations, dataset.sha256, is_modified, name="locomo")


def download_locomo(*, base_url: str = LOCOMO_BASE_URL, cache_dir: Path | None = None) -> Path:
    """Fetch the official file, unless an intact copy is in the cache already, and return where it lies.

    Raises:
        DatasetError: it cannot be fetched, or is not the pinned one; the message says both ways out.
    """
    way_out = "Either name a copy with --data PATH"
    return download(f"{base_url}/{LOCOMO_FILE}", LOCOMO_SHA256, cache_dir, alternative=way_out)


def read_dataset(path: Path) -> Dataset:
    """Read any file in LoCoMo's schema, named after the file, for your own conversations.

    Raises:
        DatasetError: see ``read_conversations``.
    """
    document, sha256 = read_json(path)
    dangling = list[str]()
    conversations = tuple(parse_locomo(document, path.name, dangling))
    return Dataset(conversations, sha256, False, name=path.stem, dangling_evidence=tuple(dangling))


def read_json(path: Path, source: str | None = None) -> tuple[object, str]:
    """Read a JSON file, and the SHA-256 of its bytes.

    ``source`` names it in errors where the name of the file does not tell which one it is.

    Raises:
        DatasetError: the file is missing, or not JSON (see ``decode_json``).
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(
            f"cannot read the data file {str(path)!r} ({error.strerror}); name a readable JSON file"
        ) from error
    return decode_json(content, source or path.name), hashlib.sha256(content).hexdigest()


def read_conversations(path: Path) -> list[Conversation]:
    """Read the conversations of any file in LoCoMo's schema; ``qa`` and the annotations may be absent.

    Raises:
        DatasetError: the file is missing, not JSON, or not in the schema; the message says where.
    """
    return list(read_dataset(path).conversations)


def decode_json(content: bytes, source: str) -> object:
    """Decode a JSON file strictly: a key that occurs twice would silently lose what it held first.

    Raises:
        DatasetError: not JSON, truncated, or with a doubled key.
    """

    def members_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(pairs)
        if len(members) < len(pairs):
            names = [name for name, _ in pairs]
            doubled = next(name for name in names if names.count(name) > 1)
            raise DatasetError(f"{source}: key {doubled!r} occurs twice in one object; rename or remove one")
        return members

    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=members_once)
    except json.JSONDecodeError as error:
        raise DatasetError(
            f"{source}: not valid JSON at line {error.lineno}, column {error.colno} ({error.msg}); the file "
            "may be truncated: get it again, or correct that line"
        ) from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{source}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    except RecursionError as error:
        raise DatasetError(f"{source}: nested too deeply; name another file") from error
    except DatasetError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise DatasetError(f"{source}: cannot be decoded ({error}); correct the file") from error
