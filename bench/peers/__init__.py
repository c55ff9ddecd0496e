"""A comparison of acorn with other frameworks, on the same tasks and the same scripted server: `make bench-peers`."""
