"""Build, answer, judge, report: resumable stages over any dataset in LoCoMo's schema."""
