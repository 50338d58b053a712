"""The terminal: whatever text a command prints, it cannot be a command to the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from headtail.files.names import shown_lines


class Console(console.Console):
    """A console on which text is text: it has no markup, no emoji codes and no control characters.

    Args:
        stderr: write to standard error instead of standard output.
        width: columns; by default those of the terminal.
        quiet: write nothing.
    """

    def __init__(
        self, *, stderr: bool = False, width: int | None = None, quiet: bool = False
    ) -> None:
        super().__init__(
            stderr=stderr, width=width, quiet=quiet, markup=False, emoji=False, highlight=False
        )

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Whatever is printed passes here, each cell of a table too."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(shown_lines(text), style)
