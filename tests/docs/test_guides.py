"""Tests of the guides: each states its goal, contains a program that runs, and links special terms to the glossary."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cases import case
from tests.docs.pages import DOCS, ROOT, blocks_of, run_elsewhere

GUIDES = sorted((DOCS / "guides").glob("*.md"))
READ = [page for folder in ("guides", "tutorial", "explanation") for page in sorted((DOCS / folder).glob("*.md"))]
WORDS = {
    "lane": r"lanes?\b",
    "port": r"port\b(?= `acorn)",
    "forced finish": r"forced finish",
    "source": r"sources?\b(?= of (?:tools|the agent)|: (?:an )?objects?)",
    "journal": r"journal\b",
    "lease": r"leases?\b",
    "circuit": r"circuits?\b",
    "single turn": r"single turn\b",
}
"""Words that nobody knows from elsewhere in their meaning here, and how they stand on a page."""


def prose(page: Path) -> str:
    """Return a page without its code, headings, comments and figures."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<!-- bench-peers: begin -->.*?<!-- bench-peers: end -->", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->|^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^#.*$", "", text, flags=re.MULTILINE)


def guide_name(page: Path) -> str:
    return page.stem


def test_guide_page_starts_with_statement_of_its_goal() -> None:
    for guide in GUIDES:
        with case(guide):
            first = next(part for part in prose(guide).split("\n\n") if part.strip())
            assert first.strip().startswith("After this page you "), f"{guide.name} begins: {first[:200]}"


def test_guide_page_contains_program_that_is_tested() -> None:
    for guide in [page for page in GUIDES if page.stem != "examples"]:
        with case(guide):
            assert run_elsewhere(guide) or any(block.is_run for block in blocks_of(guide))


def test_guide_page_is_linked_from_home_page() -> None:
    for guide in GUIDES:
        with case(guide):
            assert f"](guides/{guide.name})" in (DOCS / "index.md").read_text(encoding="utf-8")


def test_glossary_term_is_linked_to_glossary_at_first_use_in_page() -> None:
    for page in [ROOT / "README.md", DOCS / "why.md", *READ]:
        with case(page):
            text = re.sub(r"`[^`\n]*`", lambda code: code[0] if code[0].startswith("`acorn") else "``", prose(page))
            for word, form in WORDS.items():
                found = re.search(rf"(?<![\w\[(/#-]){form}|\[[^\]]*{form}[^\]]*\]\([^)]*\)", text, flags=re.IGNORECASE)
                if found is not None:
                    assert found[0].startswith("["), (
                        f"{page.name}: `{word}` is first said without a link: ...{around(text, found)}"
                    )


def around(text: str, found: re.Match[str]) -> str:
    return text[max(0, found.start() - 40) : found.end() + 40]


def test_glossary_contains_each_acorn_specific_term() -> None:
    glossary = (DOCS / "glossary.md").read_text(encoding="utf-8").lower()
    for word in WORDS:
        assert f"## {word}\n" in glossary
