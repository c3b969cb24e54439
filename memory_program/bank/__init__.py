"""What is remembered: memories, the log of operations that made them, and how they are found."""
