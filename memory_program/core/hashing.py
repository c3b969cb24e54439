"""Hashes of content, as keys of records."""

import hashlib
import json

RECORD_VERSION = "0.1.0"
"""The version in the keys of records. It changes only when equal keys would no longer mean equal work, so a
release continues the runs of the previous one."""


def content_hash(*parts: object) -> str:
    """Hash JSON values: equal for equal content, whatever the order of keys in an object.

    Example:
        >>> content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
        True
    """
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
