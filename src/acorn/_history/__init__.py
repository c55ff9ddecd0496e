"""The conversation with the model: its messages, their repair, and the code that writes history and journal."""
