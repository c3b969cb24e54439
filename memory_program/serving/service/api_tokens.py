"""Tokens of the server: hashed at rest, scoped to namespaces, to read or to write, revocable at once."""

import hmac
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from sqlalchemy import insert, select, update

from memory_program.bank.db_engine import Database
from memory_program.bank.db_schema import TOKENS
from memory_program.bank.store import check_namespace
from memory_program.core.errors import AccessError, ConfigError

TOKEN_PREFIX = "mp_"
"""The beginning of every token: the keys of providers have others."""

_MOST_LABEL_CHARS = 100

Access = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request: its namespaces, and if it may change them.

    A name that ends with ``*`` stands for all names with that beginning. ``label`` says whose token it is.
    """

    token_id: str
    namespaces: tuple[str, ...]
    access: Access
    label: str = ""

    def choose_namespace(self, asked: str | None, default: str) -> str:
        """Return the namespace of a request; without a name that of the token, or the server's default.

        Raises:
            AccessError: the token is not for it.
            ConfigError: it is not a valid name.
        """
        exact = [name for name in self.namespaces if not name.endswith("*")]
        only = exact[0] if len(self.namespaces) == 1 and exact else default
        name = only if asked is None else asked
        check_namespace(name)
        if not self.allows(name):
            raise AccessError(f"the token {self.token_id} is not for namespace {name!r:.80}")
        return name

    def allows(self, namespace: str) -> bool:
        """Say if a namespace is one of those that it may use."""
        return any(
            namespace.startswith(name[:-1]) if name.endswith("*") else namespace == name
            for name in self.namespaces
        )

    def require_write(self) -> None:
        """Raise an AccessError unless it may change memories."""
        if self.access != "write":
            raise AccessError(f"the token {self.token_id} may only read: make one with --access write")


LOCAL_USER = Principal("local", ("*",), "write")
"""The sender of every request to a server that asks for no token."""


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A token without its secret."""

    token_id: str
    namespaces: tuple[str, ...]
    access: Access
    created_at: float
    revoked_at: float | None
    label: str = ""


class ApiTokens:
    """The tokens in a database. Every method raises a StoreError if the database fails."""

    def __init__(self, database: Database) -> None:
        """Use a database."""
        self._database = database

    def create(self, namespaces: Sequence[str], access: Access, label: str = "") -> str:
        """Make a token, and return it: only its hash is kept. The label says whose it is.

        Raises:
            ConfigError: no namespace is given, or one is not a valid name, or the label is too long.
        """
        if len(label) > _MOST_LABEL_CHARS or not label.isprintable():
            raise ConfigError(
                f"label={label!r:.80} must have at most {_MOST_LABEL_CHARS} characters, all of which can be "
                "printed"
            )
        if not namespaces:
            raise ConfigError("a token needs a namespace: name one, or '*' for all")
        for name in namespaces:
            check_namespace(name)
        token_id = secrets.token_hex(4)
        token = f"{TOKEN_PREFIX}{token_id}_{secrets.token_urlsafe(32)}"
        scope = json.dumps({"namespaces": list(namespaces), "access": access, "label": label})
        row = {"token_id": token_id, "digest": _digest(token), "scope": scope, "created_at": time.time()}
        with self._database.writing() as connection:
            connection.execute(insert(TOKENS), row)
        return token

    def list(self) -> "list[TokenEntry]":
        """List all tokens, the oldest first."""
        with self._database.reading() as connection:
            found = connection.execute(select(TOKENS).order_by(TOKENS.c.created_at)).all()
        return [
            TokenEntry(
                row.token_id,
                tuple(scope["namespaces"]),
                scope["access"],
                row.created_at,
                row.revoked_at,
                scope.get("label", ""),  # older versions had none
            )
            for row in found
            for scope in [json.loads(row.scope)]
        ]

    def revoke(self, token_id: str) -> None:
        """Refuse a token from now on.

        Raises:
            ConfigError: there is no such token, or it was revoked before.
        """
        is_this = (TOKENS.c.token_id == token_id, TOKENS.c.revoked_at.is_(None))
        with self._database.writing() as connection:
            if not connection.execute(update(TOKENS).where(*is_this).values(revoked_at=time.time())).rowcount:
                raise ConfigError(f"there is no token {token_id!r:.40} to revoke: the list command shows all")

    def resolve(self, token: str) -> Principal:
        """Return the holder of a token.

        Raises:
            AccessError: it is unknown or revoked.
        """
        token_id = token.removeprefix(TOKEN_PREFIX).partition("_")[0]
        with self._database.reading() as connection:
            row = connection.execute(select(TOKENS).where(TOKENS.c.token_id == token_id)).one_or_none()
        digest = "" if row is None else row.digest
        if not hmac.compare_digest(digest, _digest(token)) or row is None or row.revoked_at is not None:
            raise AccessError("the token is unknown or revoked: make one with memory-program token create")
        scope = json.loads(row.scope)
        return Principal(token_id, tuple(scope["namespaces"]), scope["access"], scope.get("label", ""))


def _digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()  # no salt: a token is 256 random bits
