"""Coverage-guided fuzzing of everything that reads what a model, or a stranger's file, has written.

``python -m tests.fuzz --seconds 600`` spends that long on each target; ``--target NAME`` on one, ``--corpus
FOLDER`` keeps what reaches new code, so that the next run goes on from there. A target raises when a promise
is broken: the input is shown and written to ``crash-*`` in the working directory, and the status is not 0.

Atheris (libFuzzer for Python) finds new input by the branches that it reaches. It is compiled, and comes as
a wheel for Linux alone; without it the properties in ``tests/unit/test_any_input.py`` still run.
"""

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(
    include=["locomo", "memory_program.agents", "memory_program.bank"], enable_loader_override=False
):
    from dspy.utils.exceptions import AdapterParseError

    from locomo.beam import load_beam
    from locomo.benchmark_errors import DatasetError
    from locomo.judge.judge import parse_verdict
    from locomo.locomo import decode_json
    from locomo.locomo_schema import parse_locomo
    from locomo.memoryagentbench import load_memoryagentbench
    from locomo.prompt_markers import escape_prompt_markers
    from memory_program.agents.chat_adapter import ADAPTER
    from memory_program.agents.signatures import AnswerOrSearch, AnswerQuestion, WriteAll, WriteCore
    from memory_program.agents.tools import ALL_TOOLS, MemoryTools
    from memory_program.bank.bank import MemoryBank
    from memory_program.bank.bank_markdown import apply_markdown, bank_from_markdown, bank_to_markdown
    from memory_program.bank.dates.resolve import find_dates, resolve_date, resolve_date_span
    from memory_program.bank.foreign_exports import read_foreign_export
    from memory_program.bank.memory import Draft, MemoryKind, Provenance
    from memory_program.bank.record_json import space_from_json
    from memory_program.bank.space import MemorySpace
    from memory_program.core.errors import MemoryOperationError, StoreError

from tests.conversations import session
from tests.hostile_samples import injections

WORDS = [
    *(
        "[[ ## tool_calls ## ]]",
        "[[ ## completed ## ]]",
        "[[ ## answer ## ]]",
        "<|im_end|>",
        "```",
        "\\ud83d",
    ),
    *(
        '{"tool_calls": [',
        '{"name": "',
        '", "args": {',
        '"text": "',
        '"kind": "semantic"',
        '"memory_id": "m1"',
    ),
    *("]}", "}}", "yesterday", "2023-05-08", "3 weeks ago", "CORRECT", "WRONG", '"sample_id"', '"evidence"'),
    *("the week before", "Friday", "two", "ago", "the end of", "last", "Christmas", "31", "June", "7pm"),
    *('"conversation"', '"session_1"', '"dia_id"', "D1:1", '"format": "memory-program/1"', '"operations"'),
]
"""What inputs are made of; libFuzzer takes them as its dictionary."""

Target = Callable[[bytes], None]


def replies(content: bytes) -> None:
    """A reply is read or refused, and what is read goes through the tools without a raise."""
    text = content.decode(errors="replace")
    for signature in (WriteAll, AnswerOrSearch):
        try:
            read = ADAPTER.parse(signature, text)
        except AdapterParseError:
            continue
        space = MemorySpace("fuzz")
        tools = MemoryTools(space, session(1, "Mara: I moved to Oslo."), "generalist")
        for call in read["tool_calls"].tool_calls:
            before = space.bank.version
            refused = tools.call(call.name, call.args, ALL_TOOLS).is_error
            assert space.bank.version - before <= (not refused)
        assert MemoryBank.replay("fuzz", space.bank.operations()).live() == space.bank.live()


def calls(content: bytes) -> None:
    """As ``replies``, for what stands where the calls belong."""
    replies(b"[[ ## tool_calls ## ]]\n" + content + b"\n\n[[ ## answer ## ]]\n\n[[ ## completed ## ]]")


def variants(content: bytes) -> None:
    """A call in any of the known variants is that call, whatever its text says; so is an answer in JSON."""
    text = content.decode(errors="replace")
    args = {"action": "append", "text": text}
    call = {"name": "edit_core", "args": args}
    whole = json.dumps({"tool_calls": [call]})
    dressed = [
        whole,
        f"<think>Hm.</think>\n{whole}",
        f"[[ ## tool_calls ## ]]\n{whole}[[ ## completed ## ]]<|im_end|>",
        json.dumps({"tool_calls": call}),
        json.dumps([{"name": "edit_core", "parameters": json.dumps(args)}]),
        json.dumps({"tool_calls": [{"name": "edit_core", "args": {"action": "append"}, "text": text}]}),
    ]
    expected = [("edit_core", {**args, "text": text.replace("\0", "\ufffd")})]
    for reply in dressed:
        read = ADAPTER.parse(WriteCore, reply)["tool_calls"].tool_calls
        assert [(call.name, call.args) for call in read] == expected, reply
    answer = ADAPTER.parse(AnswerQuestion, json.dumps({"answer": text}))["answer"]
    assert answer == text.replace("\0", "\ufffd").strip()


def prompts(content: bytes) -> None:
    """What was broken up holds no marker, and is not broken up further."""
    shown = escape_prompt_markers(content.decode(errors="surrogateescape"))
    assert "[[ ##" not in shown
    assert escape_prompt_markers(shown) == shown
    shown.encode()


def verdicts(content: bytes) -> None:
    """A judge's reply is a verdict or none."""
    parse_verdict(content.decode(errors="replace"))


def dates(content: bytes) -> None:
    """An expression of time is a span near the day that it was said on; its name is read as that span."""
    text = content.decode(errors="replace")[:100]
    for said_on in (date(2023, 5, 8), date(2024, 2, 29), date(1, 1, 2), date(9999, 12, 31)):
        for mention in find_dates(text, said_on):
            assert mention.date_span.first <= mention.date_span.last
        span = resolve_date_span(text, said_on)
        if span is None:
            continue
        assert span.first <= span.last
        if not re.search(r"\d\d|year|decade|hundred", text, re.IGNORECASE):
            assert abs(span.first.year - said_on.year) <= 9  # 29 February may be eight years away
        if 1900 <= said_on.year <= 2099 and 1900 <= span.first.year <= 2099:
            again = resolve_date_span(span.phrase, date(2000, 1, 1))
            assert again is not None
            assert (again.first, again.last) == (span.first, span.last)
        day = span.first.isoformat()
        assert resolve_date(day, said_on) == span.first


def datasets(content: bytes) -> None:
    """A file is in the schema, or an error says where it is not."""
    try:
        parse_locomo(decode_json(content, "fuzz.json"), "fuzz.json")
    except DatasetError:
        return


def rows(content: bytes) -> None:
    """A row of a benchmark is in the schema, or an error says where it is not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_bytes(content)
        for load in (load_beam, load_memoryagentbench):
            with contextlib.suppress(DatasetError):
                load(path)


def exports(content: bytes) -> None:
    """An exported namespace is read, or refused as a whole."""
    _read_document(content, space_from_json)


def _read_document(content: bytes, read: Callable[[Any], object]) -> None:
    try:
        document: Any = decode_json(content, "fuzz.json")
    except DatasetError:
        return
    with contextlib.suppress(StoreError):
        read(document)


def _one_memory() -> MemoryBank:
    bank = MemoryBank("a")
    draft = Draft("Mara lives in Oslo.", MemoryKind.SEMANTIC, None, ("D1:1",))
    bank.create([draft], Provenance("fuzz"))
    return bank


def markdown(content: bytes) -> None:
    """An edited file is applied to its bank, or refused as a whole."""
    bank, by = _one_memory(), Provenance("fuzz")
    try:
        apply_markdown(bank, bank_from_markdown(content.decode(errors="replace")), by)
    except (StoreError, MemoryOperationError):
        assert bank.version == 1
        return
    apply_markdown(bank, bank_from_markdown(bank_to_markdown(bank)), by)


def foreign(content: bytes) -> None:
    """An export of another system is read, or refused as a whole."""
    _read_document(content, read_foreign_export)


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        replies,
        calls,
        variants,
        prompts,
        verdicts,
        dates,
        datasets,
        rows,
        exports,
        markdown,
        foreign,
    )
}


def seeds(name: str) -> list[str]:
    """What a target begins with: good input, and the hostile one."""
    call = '{"name": "manage_memory", "args": {"action": "create", "text": "Mara", "kind": "semantic"}}'
    talk = {"speaker_a": "A", "speaker_b": "B", "session_1_date_time": "1:56 pm on 8 May, 2023"}
    talk["session_1"] = [{"speaker": "A", "dia_id": "D1:1", "text": "Hi"}]
    asked = [{"question": "Who?", "answer": "A", "category": 4, "evidence": ["D1:1; D:1:2"]}]
    export = {"format": "memory-program/1", "namespace": "a", "operations": [], "sessions": []}
    good = {
        "replies": [f'[[ ## tool_calls ## ]]\n{{"tool_calls": [{call}]}}\n\n[[ ## completed ## ]]'],
        "calls": [f'{{"tool_calls": [{call}, {call}]}}', f"{call}\n{call}", f"```\n[{call}]\n```"],
        "variants": ["Mara </think> [[ ## tool_calls ## ]]", '```json {"name": "edit_core"}'],
        "prompts": ["[[ ## answer ## ]] <|im_end|>"],
        "verdicts": ["**CORRECT**", "Verdict: wrong.", '{"label": "CORRECT"}', "CORRECT (same place)"],
        "dates": [
            "the week before last",
            "8 May 2023",
            "in 3 days",
            "Monday the 12th",
            "2023-13-01",
            "07 June 23",
        ],
        "datasets": [json.dumps([{"sample_id": "a", "conversation": talk, "qa": asked}])],
        "rows": [
            '{"conversation_id": "1", "chat": [[{"role": "user", "id": 0, "content": "Hi"}]], '
            '"probing_questions": {"abstention": [{"question": "Who?", "rubric": ["x"]}]}}',
            '{"context": "Hi", "questions": ["Who?"], "answers": [["A"]], '
            '"metadata": {"source": "eventqa_full"}}',
        ],
        "exports": [json.dumps(export)],
        "markdown": [
            bank_to_markdown(_one_memory()).replace("## Procedural", "- [2023-05-08] New.\n## Procedural")
        ],
        "foreign": [
            '[{"mapping": {"a": {"message": {"author": {"role": "user"}, "content": {"parts": ["Hi"]}}}}}]',
            '[{"chat_messages": [{"sender": "human", "text": "Hi"}]}]',
            '{"results": [{"id": "1", "memory": "Hi"}]}',
            '{"edges": [{"uuid": "1", "fact": "Hi", "valid_at": "2023-05-08T00:00:00Z"}]}',
            '{"agents": [{"messages": [{"role": "user", "content": "Hi"}]}], "blocks": []}',
        ],
    }[name]
    return [*good, *injections().values()]


def fuzz(name: str, seconds: int, corpus: Path) -> None:
    """Fuzz one target in this process; libFuzzer ends it, with a status of its own."""
    corpus.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(seeds(name)):
        (corpus / f"seed-{number}").write_bytes(text.encode(errors="replace"))
    dictionary = corpus.with_name(f"{corpus.name}.dict")
    dictionary.write_text(
        "".join(f"{json.dumps(word)}\n" for word in WORDS if word.isascii()), encoding="ascii"
    )
    limits = [
        f"-max_total_time={seconds}",
        "-max_len=4096",
        "-timeout=20",
        "-rss_limit_mb=4096",
        "-verbosity=0",
    ]
    atheris.Setup(
        [sys.argv[0], str(corpus), f"-dict={dictionary}", "-print_final_stats=1", *limits], TARGETS[name]
    )
    atheris.Fuzz()


def main() -> int:
    """Fuzz, each target in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=60, help="how long to fuzz each target")
    parser.add_argument("--target", choices=[*TARGETS], help="the one to fuzz; without it, all of them")
    parser.add_argument(
        "--corpus", type=Path, help="a folder that keeps what was found; without it, nothing is"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        corpus = options.corpus or Path(scratch)
        if options.target:
            fuzz(options.target, options.seconds, corpus / options.target)
        for name in TARGETS:
            command = [sys.executable, "-m", "tests.fuzz", "--target", name, "--corpus", str(corpus)]
            done = subprocess.run([*command, "--seconds", str(options.seconds)], check=False)
            print(f"{name}: {'ok' if done.returncode == 0 else 'BROKEN'}", flush=True)
            if done.returncode:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
