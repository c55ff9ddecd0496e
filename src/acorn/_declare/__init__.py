"""The declaration of agents: code that checks the settings and tools of an agent class and compiles its spec."""
