"""Draw frames of a terminal as one animated SVG, without fonts or scripts from elsewhere."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape

from rich.console import Console, RenderableType
from rich.style import Style
from rich.terminal_theme import DIMMED_MONOKAI

_COLUMNS = 114
_CHAR_W, _LINE_H = 8.4, 19.0
_PADDING, _TITLE_H = 14.0, 34.0
_BACKGROUND, _FOREGROUND, _DIM = "#11191c", "#d5dde0", "#7d8b90"
_FRAME_S = 1.2
_STYLESHEET = """\
text { font: 14px ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; }
.frame { visibility: hidden; animation: frame %(total)gs step-end infinite; }
.poster { visibility: visible; }
@keyframes frame { 0%% { visibility: visible; } %(share)g%% { visibility: hidden; } }
@media (prefers-reduced-motion: reduce) { .frame { animation: none; } }"""


def animated_svg(frames: Sequence[RenderableType], *, title: str, poster: int) -> str:
    """Draw frames of a terminal one after another, in a loop.

    Args:
        frames: what the terminal shows, each for the same time.
        title: title of the terminal.
        poster: index of the frame for viewers that do not animate and readers who prefer no motion.
    """
    lines = [_text_lines(frame) for frame in frames]
    width = _COLUMNS * _CHAR_W + 2.0 * _PADDING
    height = _TITLE_H + max(len(frame) for frame in lines) * _LINE_H + _PADDING
    total_s = len(frames) * _FRAME_S
    style = _STYLESHEET % {"total": total_s, "share": round(100.0 / len(frames), 3)}
    groups = []
    for number, frame in enumerate(lines):
        css_class = "frame poster" if number == poster else "frame"
        # Negative: the animation of each frame has begun already, so none is shown before its turn.
        delay_s = number * _FRAME_S - total_s
        groups.append(f'<g class="{css_class}" style="animation-delay:{delay_s:g}s">\n' + "\n".join(frame) + "\n</g>")
    lights = "".join(
        f'<circle cx="{20 + 18 * place}" cy="17" r="5.5" fill="{colour}"/>'
        for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}\n</style>\n"
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{_BACKGROUND}"/>\n{lights}\n'
        f'<text x="{width / 2.0:g}" y="22" text-anchor="middle" fill="{_DIM}">{escape(title)}</text>\n'
        + "\n".join(groups)
        + "\n</svg>\n"
    )


def _text_lines(frame: RenderableType) -> list[str]:
    """One `text` element per line of the terminal."""
    console = Console(file=io.StringIO(), width=_COLUMNS, force_terminal=True, color_system="truecolor")
    rows = []
    for number, segments in enumerate(console.render_lines(frame, pad=False)):
        spans, column = [], 0
        for segment in segments:
            if segment.text.strip():
                spans.append(_span(segment.text, segment.style or Style(), column))
            column += segment.cell_length
        y = _TITLE_H + (number + 0.75) * _LINE_H
        rows.append(f'<text y="{y:g}">{"".join(spans)}</text>')
    return rows


def _span(text: str, style: Style, column: int) -> str:
    """One run of text, held to its columns whatever font the viewer has."""
    stripped = text.lstrip(" ")
    column += len(text) - len(stripped)
    stripped = stripped.rstrip(" ")
    weight = ' font-weight="bold"' if style.bold else ""
    return (
        f'<tspan x="{_PADDING + column * _CHAR_W:g}" textLength="{len(stripped) * _CHAR_W:g}"'
        f' lengthAdjust="spacingAndGlyphs" fill="{_colour(style)}"{weight}>{escape(stripped)}</tspan>'
    )


def _colour(style: Style) -> str:
    if style.dim:
        return _DIM
    if style.color is None or style.color.is_default:
        return _FOREGROUND
    return style.color.get_truecolor(DIMMED_MONOKAI).hex
