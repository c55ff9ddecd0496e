"""The embedded language model: it runs in this process and needs neither a key nor a network."""
