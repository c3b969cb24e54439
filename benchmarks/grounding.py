"""Measure how many true facts the grounding check refuses, on LoCoMo's own notes.

The notes state 2,541 facts (``observation``) of the sessions, in words of their own. Each is checked against
its session: what is refused is a false refusal. Each is also checked against a session of strangers, which
shows how much of what was invented the check finds.

    python benchmarks/grounding.py --data locomo10.json
"""

import argparse
import json
import sys
from pathlib import Path

from locomo.locomo import load_locomo
from memory_program.agents.grounding import is_grounded
from memory_program.core.command_line import run_script


def main() -> None:
    """Print the false refusals, and what is found among facts of other sessions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the path of locomo10.json")
    path = parser.parse_args().data
    refused, others, total = list[str](), 0, 0
    conversations = load_locomo(path).conversations
    notes = {sample["sample_id"]: sample["observation"] for sample in json.loads(path.read_bytes())}
    for place, conversation in enumerate(conversations):
        stranger = conversations[(place + 1) % len(conversations)].sessions[0]
        for session in conversation.sessions:
            by_speaker = notes[conversation.conversation_id].get(f"{session.session_id}_observation", {})
            facts = [fact for facts in by_speaker.values() for fact, *_ in facts]
            total += len(facts)
            refused += [fact for fact in facts if not is_grounded(fact, session)]
            others += sum(not is_grounded(fact, stranger) for fact in facts)
    for fact in refused:
        print(f"refused: {fact}")
    print(f"{len(refused)} of {total} true facts are refused ({len(refused) / total:.2%})")
    print(f"{others} of {total} facts are refused in a session of strangers ({others / total:.1%})")


if __name__ == "__main__":
    sys.exit(run_script(main))
