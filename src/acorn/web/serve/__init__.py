"""An HTTP service for an agent, with endpoints of acorn and OpenAI's chat completions endpoint."""
