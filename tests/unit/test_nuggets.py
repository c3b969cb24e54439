"""The judge of nuggets: its prompts, and what it reads from replies."""

from pathlib import Path

import pytest
from beam_samples import write_beam
from memoryagentbench_samples import ROWS, write_memoryagentbench

from locomo.beam import load_beam
from locomo.judge.nuggets import NuggetJudge
from locomo.memoryagentbench import load_memoryagentbench
from locomo.nugget_scores import NuggetGrading, list_nugget_gradings, nugget_score
from tests.scripted_lm import ScriptedLM, fields
