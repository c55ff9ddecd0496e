"""The conversation that the model sees: its messages, their repair, and the writer of history and journal."""
