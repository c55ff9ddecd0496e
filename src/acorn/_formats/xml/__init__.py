"""XML in requests and responses: the encoded inputs, and the answers of models that cannot call tools."""
