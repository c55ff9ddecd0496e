"""An HTTP service for an agent, with acorn's own endpoints and an endpoint for OpenAI's chat completions API."""
