"""Functions as tools: marking them, gathering them, describing them, binding a model's arguments to them."""
