"""The page in the browser: try an agent and view stored runs."""
