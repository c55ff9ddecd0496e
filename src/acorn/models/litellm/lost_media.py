"""What LiteLLM, or the provider behind it, would lose without a word, or fetch by itself. Seen in what it sends."""

from __future__ import annotations

from acorn.models.litellm.library import library
from acorn.models.sent_media import SentMedium, no_kind, no_url

_ALL = ("image", "audio", "file")
_LOSES = {
    "anthropic": ("audio",),
    "mistral": ("audio",),
    "codestral": ("audio",),
    "ollama": ("audio", "file"),
    "ollama_chat": ("audio", "file"),
    "azure_ai": ("file",),
    **dict.fromkeys(("deepseek", "sambanova", "publicai", "docker_model_runner"), _ALL),
}
_HEARS = ("openai", "azure", "openrouter", "gemini", "vertex_ai")
_READS_URLS = ("openai", "azure", "openrouter", "anthropic", "mistral")
"""LiteLLM hands them the URL of an image; for others it fetches the image, from this machine."""


def lost(medium: SentMedium, provider: str, model: str) -> str | None:
    """Why a medium cannot be sent; None where it can."""
    if medium.kind in _LOSES.get(provider, ()):
        return no_kind(medium)
    if medium.kind == "audio" and "responses/" in model:  # it would send the base64 as text
        return no_kind(medium)
    if medium.kind == "audio" and provider not in _HEARS and not _is_like_openai(provider):
        return no_kind(medium)
    if medium.url is None or medium.kind not in _ALL:
        return None
    if medium.kind != "image":
        return None if (medium.kind, provider) == ("file", "anthropic") else no_url(medium)
    # For Claude it fetches what is no `https`.
    is_claude = provider == "anthropic" or (provider == "azure_ai" and "claude" in model)
    is_fetched = provider not in _READS_URLS and not _is_like_openai(provider)
    if is_fetched or (is_claude and medium.url.lower().startswith("http://")):
        return no_url(medium, f"For `{model}` LiteLLM would fetch the URL of an image from this machine")
    return None


def _is_like_openai(provider: str) -> bool:
    return provider in library().openai_compatible_providers
