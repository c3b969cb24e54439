"""The fake that other tests trust: it fails on a reply too many and on a reply too few."""

import copy

import dspy
import pytest
from scripted_lm import ScriptedLM, ScriptError, Truncated, fields


def test_replies_come_in_order_and_requests_are_recorded():
    with ScriptedLM(["one", "two"]) as lm:
        assert lm("first") == ["one"]
        assert lm("second") == ["two"]
    assert [request.user for request in lm.requests] == ["first", "second"]


def test_a_reply_left_over_fails():
    with pytest.raises(ScriptError, match="left over"), ScriptedLM(["one", "two"]) as lm:
        lm("first")


def test_running_out_of_replies_fails_even_if_the_program_swallows_the_error():
    lm = ScriptedLM([])
    with pytest.raises(dspy.LMError, match="no reply is left"):
        lm("first")
    with pytest.raises(ScriptError, match="no reply is left"):
        lm.assert_exhausted()


def test_an_exception_in_the_script_arrives_as_dspy_reports_it():
    with ScriptedLM([dspy.lm15.RateLimitError("slow down")]) as lm, pytest.raises(dspy.LMRateLimitError):
        lm("first")


def test_a_marker_chooses_its_own_script_whatever_the_order_of_calls():
    with ScriptedLM({"cats": ["meow"], "dogs": ["wow"]}) as lm:
        assert lm("about dogs") == ["wow"]
        assert lm("about cats") == ["meow"]


def test_a_truncated_reply_says_so():
    with ScriptedLM([Truncated("half a sen")]) as lm:
        response = lm(dspy.lm15.Request(lm.model, messages=(dspy.lm15.Message.user("go"),)))
    assert response.finish_reason == "length"


def test_a_copied_program_plays_the_same_script():
    program = dspy.Predict("question -> answer")
    with ScriptedLM([fields(answer="42")]) as lm:
        program.set_lm(lm)
        assert copy.deepcopy(program)(question="?").answer == "42"
