"""Us beside others, at the same work, against the same scripted server: `make bench-peers`."""
