"""What a Markdown text looks like, as text."""

from chatapp.tui.markdown_sheet import Sheet


def shown(text: str, width: int = 200) -> str:
    """Return the lines of a whole text at a width."""
    sheet = Sheet()
    sheet.set(text)
    return "\n".join(line.content.plain.rstrip() for line in sheet.lines(width))
