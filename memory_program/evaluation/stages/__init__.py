"""The stages of an evaluation: build, answer, judge, calibrate."""
