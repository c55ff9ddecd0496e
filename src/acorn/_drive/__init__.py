"""The drivers: they do the waiting that the machine asks for. Two kinds, one machine."""
