"""The tables of docs/extractors.md, made from the tables in the code.

``python -m tests.support.extractor_table`` writes them, from the checkout.
"""

from __future__ import annotations

from pathlib import Path

from rpcfut._known_types import FAMILIES, KNOWN, REFUSED

PAGE = Path(__file__).parents[2] / "docs/extractors.md"
_KNOWN = ("<!-- known: from rpcfut/_known_types.py -->\n", "<!-- end of known -->\n")
_REFUSED = ("<!-- refused: from the same -->\n", "<!-- end of refused -->\n")


def written(page: str) -> str:
    """The page with its tables as the code has them."""
    known = [(_names(row.kinds), row.looked_at) for row in KNOWN]
    known += [(family.name, family.looked_at) for family in FAMILIES]
    refused = [(row.name, row.advice) for row in REFUSED]
    page = replaced(page, _KNOWN, table("kind", "what is looked at", known))
    return replaced(page, _REFUSED, table("kind", "the message says", refused))


def _names(kinds: tuple[type, ...]) -> str:
    names = []
    for kind in kinds:
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        names.append(f"`{module}{kind.__qualname__}`")
    return ", ".join(names)


def table(left: str, right: str, rows: list[tuple[str, str]]) -> str:
    """A table of two columns."""
    lines = [f"| {left} | {right} |", "|---|---|"]
    lines += [f"| {kind} | {text} |" for kind, text in rows]
    return "\n".join(lines) + "\n"


def replaced(page: str, marks: tuple[str, str], text: str) -> str:
    """The page with another text between two marks."""
    before, rest = page.split(marks[0])
    _, after = rest.split(marks[1])
    return f"{before}{marks[0]}{text}{marks[1]}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
