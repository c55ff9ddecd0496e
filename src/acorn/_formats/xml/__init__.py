"""XML that is exchanged with the model: encoded inputs, and answers of models that cannot call tools."""
