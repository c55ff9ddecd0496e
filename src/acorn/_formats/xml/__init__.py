"""The XML in requests and responses: encoded inputs, and the answers of models that cannot call tools."""
