"""An agent as an HTTP service: its own addresses, and OpenAI's."""
