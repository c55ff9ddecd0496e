"""An agent as an HTTP service, with its own endpoints and the chat completions of OpenAI."""
