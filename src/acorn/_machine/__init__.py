"""The agent loop: a state machine without I/O, and the classes that it is built from."""
