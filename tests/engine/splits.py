"""Ways to cut a length into pieces, for the law that any cut gives the same output as one piece."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def cuts_of(draw: st.DrawFn, length: int, max_piece: int = 12) -> list[int]:
    """Lengths of the pieces, in order."""
    pieces = []
    while sum(pieces) < length:
        pieces.append(draw(st.integers(1, min(max_piece, length - sum(pieces)))))
    return pieces
