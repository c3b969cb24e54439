"""Who writes and reads: the update agent, the QA reader, and the systems they are compared with."""
