"""The agent loop: a pure state machine, and the parts that it holds."""
