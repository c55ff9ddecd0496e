"""XML between us and the model: input out, fallback answers in. Nobody but a model ever reads it."""
