"""Keeps keys out of whatever is shown, stored or logged: providers and clients echo them in their errors."""

import os
import re
import traceback

REMOVED = "[key removed]"

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
_SHORTEST_SECRET_CHARS = 8  # shorter values are words, and would be cut out of honest text
_SECRET_PATTERN = re.compile(
    r"(?i:bearer)\s+\S+|\b(?:(?:c?sk|gsk|xai|nvapi|pplx)[-_]|hf_)[-\w*]{8,}|\bAIza[-\w]{20,}"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
)
_ACCOUNT = re.compile(r"://([^/\s:@]*:[^/\s@]+)@")  # of an address; errors tell it without the "://" as well


def redact_text(text: str) -> str:
    """Replace every key of the environment, and whatever has the shape of one, by ``[key removed]``.

    Example:
        >>> redact_text("Incorrect API key provided: sk-proj-0123456789.")
        'Incorrect API key provided: [key removed].'
    """
    values = {
        value.strip()  # as keys are sent, also those of a file that ends with its line
        for name, value in os.environ.items()
        if _SECRET_NAME.search(name.upper())
    }
    secrets = {value for value in values if len(value) >= _SHORTEST_SECRET_CHARS}
    secrets.update(account for value in os.environ.values() for account in _ACCOUNT.findall(value))
    for secret in sorted(secrets, key=len, reverse=True):  # a key that contains another goes first
        text = text.replace(secret, REMOVED)
    return _SECRET_PATTERN.sub(REMOVED, text)


def redact_error(error: Exception) -> None:
    """Remove keys from an error in place, and cut off the errors that it came from when they tell one."""
    told = "".join(traceback.format_exception(error))
    if redact_text(told) == told:
        return
    error.args = tuple(redact_text(arg) if isinstance(arg, str) else arg for arg in error.args)
    message = getattr(error, "message", None)  # clients keep a second copy, which str() may read
    if isinstance(message, str):
        error.message = redact_text(message)  # pyright: ignore[reportAttributeAccessIssue]  # see above
    error.__cause__ = error.__context__ = None
