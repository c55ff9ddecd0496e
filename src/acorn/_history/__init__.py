"""The conversation with the model: creation, repair and compaction of messages, and their saved form."""
