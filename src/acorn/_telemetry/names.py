"""The names of OpenTelemetry's conventions for generative AI, as of version 1.41, and our own beside them.

The conventions are still being developed. Whoever renames something there renames it here, and nowhere else.
"""

from __future__ import annotations

from functools import lru_cache

# Spans
INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"

# Attributes
OPERATION = "gen_ai.operation.name"
AGENT = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
PROVIDER = "gen_ai.provider.name"
MODEL = "gen_ai.request.model"
TEMPERATURE = "gen_ai.request.temperature"
MAX_TOKENS = "gen_ai.request.max_tokens"
ANSWERED_BY = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOOL = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
CALL = "gen_ai.tool.call.id"
ERROR = "error.type"
STATUS = "http.response.status_code"

# Attributes that tell what was said
INSTRUCTIONS = "gen_ai.system_instructions"
INPUT = "gen_ai.input.messages"
OUTPUT = "gen_ai.output.messages"
ARGUMENTS = "gen_ai.tool.call.arguments"
RESULT = "gen_ai.tool.call.result"

# Totals of a run stand under names of their own, or who adds up all spans would count them twice.
TOTAL_INPUT_TOKENS = "gen_ai.aggregated_usage.input_tokens"
TOTAL_OUTPUT_TOKENS = "gen_ai.aggregated_usage.output_tokens"

# Metrics
DURATION = "gen_ai.client.operation.duration"
TOKENS = "gen_ai.client.token.usage"
TOKEN_TYPE = "gen_ai.token.type"
DURATIONS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
COUNTS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)

# Our own
RUN = "acorn.run.id"
BRANCH = "acorn.branch"
STOP_REASON = "acorn.stop_reason"
COST = "acorn.cost"
RETRY = "acorn.retry"
WAIT = "acorn.wait"
FALLBACK = "acorn.fallback"
FAILED = "acorn.failed"
TO = "acorn.to"
NOT_CALLED = "acorn.not_called"
HUMAN_ASKED = "acorn.human_asked"
HUMAN_ANSWERED = "acorn.human_answered"
REQUEST = "acorn.request.id"

OTHER = "_OTHER"
"""What stands where no name is known."""

_PROVIDERS = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "cohere_chat": "cohere",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "vertex_ai_beta": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""Those that are called otherwise in a model's id."""
_ROUTES = ("responses/", "converse/", "invoke/", "chat/")
"""What may stand between the provider and the model, and says how it is asked."""
_BEGINNINGS = {
    "gpt-": "openai",
    "chatgpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "claude-": "anthropic",
    "gemini-": "gcp.gemini",
}
"""Models that need no provider in their id."""


@lru_cache(maxsize=256)
def provider_and_model(name: str) -> tuple[str, str]:
    """`openai/responses/gpt-5` as `openai` and `gpt-5`."""
    name = name.partition(" (model[")[0]  # where a list has it twice
    provider, slash, model = name.partition("/")
    if not slash:
        known = next((whose for beginning, whose in _BEGINNINGS.items() if name.startswith(beginning)), OTHER)
        return known, name
    for route in _ROUTES:
        model = model.removeprefix(route)
    return _PROVIDERS.get(provider, provider), model


def finish_reason(stop_reason: str) -> str:
    """As the conventions have it: the call of a tool in the singular."""
    return "tool_call" if stop_reason == "tool_calls" else stop_reason
