"""Conversations about codes, and a model whose quality depends on its prompt.

It makes one error as a reader and one as a writer, which good instructions or good examples cure:

- as a reader it quotes the whole line, unless it is told to give the code alone, or is shown short answers;
- as a writer it leaves the code out, unless it is told to keep codes exactly, or is shown a code being kept.

On half of the inputs it makes no error, so that there are good examples; at a temperature above 0 it
sometimes makes none on the others. As the model that writes instructions it proposes a cure now and then, and
bad advice otherwise; with feedback on the errors it always proposes the cure.
"""

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

import dspy
from rich.console import Console

from locomo.locomo import read_dataset
from locomo.metrics import locomo_f1
from locomo.types import Conversation
from memory_program.agents.program import MemoryProgram
from memory_program.agents.systems import make_system
from memory_program.bank.space import MemorySpace
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.evaluation.data_splits import split_conversations
from memory_program.evaluation.role_models import ModelFactory
from memory_program.evaluation.scoring.question_scores import Json
from memory_program.models.factory import AdaptiveLimiter, language_model
from memory_program.optimization.optimization_run import optimize
from memory_program.rl.rewards import AnswerMetric
from tests.competent_model import NOT_MENTIONED, Prompt, calls_json, chat_format, content_words
from tests.model_server import ModelServer

READER_CURE = "Answer with the code alone."
WRITER_CURE = "Keep codes exactly as they were said."
BAD_ADVICE = ("Answer in whole sentences.", "Be brief in everything that you write down.")

ITEMS = ("bicycle", "suitcase", "garage", "letterbox", "locker", "cellar", "piano", "boathouse", "greenhouse")
_CODE = re.compile(r"\b[A-Z]{2}\d{2}\b")
_MASKED = "a code"


def conversation(number: int, sessions: int = 3) -> dict[str, Any]:
    """One conversation in LoCoMo's schema: in each session both speakers tell a code."""
    talk: dict[str, Any] = {"speaker_a": "Ana", "speaker_b": "Ben"}
    qa: list[dict[str, Any]] = []
    for session in range(1, sessions + 1):
        turns: list[dict[str, str]] = []
        for place, speaker in enumerate(("Ana", "Ben"), start=1):
            item = ITEMS[(2 * session + place + number) % len(ITEMS)]
            code = code_of(number, session, speaker)
            turn_id = f"D{session}:{place}"
            text = f"By the way, the code of my new {item} lock is {code} since last week."
            turns.append({"speaker": speaker, "dia_id": turn_id, "text": text})
            question = f"What is the code of {speaker}'s {item} lock?"
            qa.append({"question": question, "answer": code, "category": 4, "evidence": [turn_id]})
        talk[f"session_{session}_date_time"] = f"{session}:30 pm on {session} May, 2023"
        talk[f"session_{session}"] = turns
    return {"sample_id": f"codes-{number}", "conversation": talk, "qa": qa}


def write_conversations(path: Path, count: int = 8, sessions: int = 3) -> Path:
    """Write a file of conversations, each with ``2 * sessions`` questions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([conversation(number, sessions) for number in range(1, count + 1)]))
    return path


def code_of(number: int, session: int, speaker: str) -> str:
    """Make up a code that nothing else has."""
    digest = sha256(f"{number}:{session}:{speaker}".encode()).digest()
    letters = "".join(chr(ord("A") + byte % 26) for byte in digest[:2])
    return f"{letters}{digest[2] % 90 + 10}"


@dataclass(frozen=True)
class Steerable:
    """The model; it stores the prompts.

    Args:
        faulty: The parts that make errors: "reader", "writer" or both.
        is_fickle: Whether it replies differently to the same prompt at a temperature above 0.
    """

    faulty: Sequence[str] = ("reader", "writer")
    is_fickle: bool = True
    asked: list[Prompt] = field(default_factory=list[Prompt])

    def __call__(self, prompt: Prompt, seen: int) -> str:
        """Answer a prompt of the program, or one of an optimiser; ``seen`` says how often it was asked."""
        self.asked.append(prompt)
        seen = seen if self.is_fickle else 0
        if not prompt.wanted:
            return "ready"
        return chat_format({name: self._field(name, prompt, seen) for name in prompt.wanted})

    def _field(self, name: str, prompt: Prompt, seen: int) -> str:
        match name:
            case "answer":
                return self._answer(prompt, seen)
            case "tool_calls":
                return calls_json(self._written(prompt, seen))
            case "proposed_instruction":
                return f"{prompt.fields['basic_instruction']} {_advice(prompt, seen)}"
            case "new_instruction":
                current = prompt.fields["current_instruction"]
                return f"{current} {_cure(current, prompt.fields['examples_with_feedback'])}"
            case "module_advice":
                return json.dumps(
                    dict.fromkeys(json.loads(prompt.fields["module_names"]), _advice(prompt, seen))
                )
            case "verdict":
                return "CORRECT" if prompt.fields["gold_answer"] == prompt.fields["given_answer"] else "WRONG"
            case _:
                return "It is about codes."

    def _answer(self, prompt: Prompt, seen: int) -> str:
        asked = content_words(prompt.fields["question"])
        lines = prompt.fields["memories"].splitlines()
        best = max(lines, key=lambda line: len(asked & content_words(line)), default="")
        if len(asked & content_words(best)) < 3:
            return NOT_MENTIONED
        code = _CODE.search(best)
        short = [reply for reply in prompt.shown if _CODE.fullmatch(_value(reply, "answer"))]
        knows = READER_CURE in prompt.system or short or is_lucky(prompt, seen, prompt.fields["question"])
        return code[0] if code and (knows or "reader" not in self.faulty) else best

    def _written(self, prompt: Prompt, seen: int) -> list[tuple[str, dict[str, object]]]:
        """Write one memory a turn; of the four specialists only one has something to do."""
        if not any(
            words in prompt.system for words in ("write semantic memories", "Keep the long-term memory")
        ):
            return []
        session = prompt.fields["session"]
        kept = [reply for reply in prompt.shown if _CODE.search(_value(reply, "tool_calls"))]
        knows = WRITER_CURE in prompt.system or kept or is_lucky(prompt, seen, session)
        told = [line for line in session.splitlines() if _CODE.search(line)]
        texts = told if knows or "writer" not in self.faulty else [_CODE.sub(_MASKED, line) for line in told]
        return [("manage_memory", {"action": "create", "text": text, "kind": "semantic"}) for text in texts]


def is_lucky(prompt: Prompt, seen: int, what: str) -> bool:
    """Tell if a reply has no error, whatever the prompt."""
    return is_odd(what) or (prompt.temperature > 0 and seen % 2 == 1)


def is_odd(text: str) -> bool:
    """Choose half of all texts, always the same ones."""
    return sha256(text.encode()).digest()[0] % 2 == 1


def _advice(prompt: Prompt, seen: int) -> str:
    """Propose a cure or bad advice, depending on the prompt and on how often it was asked."""
    module = prompt.fields.get("module_names", "") + prompt.fields.get("module", "")
    if is_odd(f"{prompt.key}:{seen}"):
        return WRITER_CURE if "writer." in module or "tool_calls" in module else READER_CURE
    return BAD_ADVICE[seen % 2]


def _cure(instruction: str, feedback: str) -> str:
    """Read from the feedback which cure is needed, for memories without their code or for long answers."""
    if "Answer a question" in instruction:
        too_long = re.search(r"Wanted: (\w+)\\+nAnswered: [^\\]+\b\1\b", feedback)
        return READER_CURE if too_long else BAD_ADVICE[0]
    return WRITER_CURE if "What went wrong: " in feedback else BAD_ADVICE[1]


def _value(reply: str, name: str) -> str:
    return reply.partition(f"[[ ## {name} ## ]]\n")[2].partition("\n\n[[ ##")[0]


def quick(folder: Path, **more: Any) -> OptimizeConfig:
    """A small run on a new file of eight conversations, in a folder of its own."""
    settings: dict[str, Any] = {
        "model": "openai/task",
        "prompt_model": "openai/prompts",
        "dataset": str(write_conversations(folder / "codes.json")),
        "output": folder / "optimized.json",
        "output_dir": folder / "run",
        "mlflow": False,
        "max_sessions": 2,
        "num_examples": 8,
        "num_val": 8,
        "num_candidates": 3,
        "batch_size": 4,
        "trials": 3,
        "writer_mode": "generalist",  # one call a session
    }
    return OptimizeConfig(**{**settings, **more})


def impatient(url: str) -> ModelFactory:
    """Make real models of a server, which retry soon and wait briefly."""
    limiter = AdaptiveLimiter(8)

    def make(name: str, temperature: float) -> dspy.LM:
        return language_model(
            name,
            api_base=url,
            temperature=temperature,
            timeout_s=120.0,  # a busy machine is no fault of the server
            max_retries=1,
            first_wait_s=0.02,
            limiter=limiter,
        )

    return make


def run(
    config: OptimizeConfig, models: ModelServer | ModelFactory, score: AnswerMetric | None = None
) -> tuple[Json, str]:
    """Run an optimisation with the models of a server, or others; return its results and its output."""
    make = impatient(models.url) if isinstance(models, ModelServer) else models
    console = Console(file=(output := io.StringIO()), width=200)
    return optimize(config, console=console, models=make, score=score), output.getvalue()


def held_out(config: OptimizeConfig) -> tuple[Conversation, ...]:
    """The conversations of the test split."""
    return split_conversations(read_dataset(Path(config.source.dataset))).test


def held_out_f1(config: OptimizeConfig, server: ModelServer, program: Path | None = None) -> float:
    """The mean F1 on the test split of a program, the saved one or the one to begin with."""
    system = make_system("memory", config.system)
    assert isinstance(system, MemoryProgram)
    if program is not None:
        system.load(str(program))
    system.set_lm(impatient(server.url)(config.model, 0.0))
    scores: list[float] = []
    for conversation in held_out(config):
        space = MemorySpace(conversation.conversation_id)
        for session in conversation.sessions:
            system.remember(space, session)
        for question in conversation.questions:
            text = system.ask(space, question.text).text
            scores.append(locomo_f1(text, question.answer, question.category))
    return fmean(scores)
