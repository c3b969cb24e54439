"""Printing of plain lines and of tables that fit the terminal."""

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table


def make_console() -> Console:
    """Open standard output; a file or a pipe gets 120 columns, which the tables need."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def format_count(number: int, noun: str) -> str:
    """Write a number with its noun.

    Example:
        >>> format_count(1, "session"), format_count(1200, "question")
        ('1 session', '1,200 questions')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def print_plain(console: Console, line: str, style: str | None = None) -> None:
    """Print a line as it is: brackets are text, and a path or a signature can be copied whole.

    Characters that the console cannot write, such as half an emoji, become question marks.
    """
    line = line.encode(console.encoding, "replace").decode(console.encoding)
    console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def print_table(console: Console, table: Table) -> None:
    """Print a table; if it is too wide, in parts of whole columns, each beside the columns of text."""

    def width(column: Column) -> int:
        lines = [line for cell in (column.header, *column.cells) for line in str(cell).split("\n")]
        return max(map(cell_len, lines)) + 3

    texts = [column for column in table.columns if column.no_wrap]
    numbers = [column for column in table.columns if not column.no_wrap]
    free_width = console.width - sum(map(width, texts)) - 2
    parts: list[list[Column]] = [[]]
    for column in numbers:
        if parts[-1] and sum(map(width, [*parts[-1], column])) > free_width:
            parts.append([])
        parts[-1].append(column)
    for number, part in enumerate(parts):
        folded = Table(
            title=table.title if number == 0 else None,
            title_justify="left",
            box=table.box,
            show_edge=table.show_edge,
        )
        for column in (*texts, *part):
            folded.add_column(column.header, justify=column.justify, no_wrap=True)
        cells = zip(*(column.cells for column in (*texts, *part)), strict=True)
        for row, row_cells in zip(table.rows, cells, strict=True):
            folded.add_row(*row_cells, end_section=row.end_section)
        console.print(folded, markup=False)
