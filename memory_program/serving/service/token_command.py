"""``memory-program token``: make, list and revoke the tokens of a memory server."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import tyro
from tyro.conf import arg

from memory_program.bank.store import BankStore
from memory_program.core.command_line import run_script
from memory_program.core.settings import DATABASE_PASSWORD_SOURCE, reject_password, split_list
from memory_program.serving.service.api_tokens import ApiTokens

Db = Annotated[str, arg(help="Database of the server, an SQLAlchemy URL.")]


def create_token(
    namespaces: Annotated[
        str,
        arg(help="Comma-separated namespaces. A name may end with *: team/* stands for all in team/."),
    ],
    db_url: Db = "sqlite:///memory.sqlite",
    access: Annotated[Literal["read", "write"], arg(help="read: ask and search only.")] = "write",
    label: Annotated[
        str, arg(help="Name of its holder, for the list and the log of deletions.", help_behavior_hint="")
    ] = "",
) -> None:
    """Create a token and print it. It is shown only once, since the database stores only its hash."""
    with BankStore(_check(db_url)) as store:
        print(ApiTokens(store.database).create(split_list(namespaces), access, label))


def list_tokens(db_url: Db = "sqlite:///memory.sqlite") -> None:
    """List the tokens, without their secrets."""
    with BankStore.open_existing(_check(db_url)) as store:
        for token in ApiTokens(store.database).list():
            made = f"{datetime.fromtimestamp(token.created_at, UTC):%Y-%m-%d %H:%M}"
            state = "revoked" if token.revoked_at is not None else "valid"
            names = ", ".join(token.namespaces)
            print(f"{token.token_id}  {made}  {state}  {token.access}  {names}  {token.label}".rstrip())


def revoke_token(
    token_id: Annotated[str, arg(help="Id of the token, as list shows it.")],
    db_url: Db = "sqlite:///memory.sqlite",
) -> None:
    """Revoke a token: a running server refuses it at once."""
    with BankStore.open_existing(_check(db_url)) as store:
        ApiTokens(store.database).revoke(token_id)
    print(f"{token_id} is revoked")


_COMMANDS: dict[str, Callable[..., None]] = {
    "create": create_token,
    "list": list_tokens,
    "revoke": revoke_token,
}


def main(arguments: Sequence[str] | None = None, prog: str = "memory-program token") -> int:
    """Run the command that the arguments name, and return the exit status."""
    return run_script(
        lambda: tyro.extras.subcommand_cli_from_dict(
            _COMMANDS, args=arguments, prog=prog, description=__doc__
        )
    )


def _check(db_url: str) -> str:
    return reject_password("db_url", DATABASE_PASSWORD_SOURCE, db_url)
