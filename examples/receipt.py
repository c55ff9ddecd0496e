"""Receipt reader: an agent that converts a photo of a receipt to typed data, with a tool that returns an image.

    python examples/receipt.py
    acorn run examples/receipt.py:Receipts --photo receipt.png --model openai/gpt-4o

The first command needs no API key and no network, because it uses a scripted model. The function `png` draws the photo.
"""

import struct
import tempfile
import zlib
from datetime import date
from decimal import Decimal
from pathlib import Path

from pydantic import BaseModel, Field

from acorn import Image, module, tool
from acorn.testing import ScriptedModel, call, finish


class Photo(BaseModel):
    photo: Image = Field(description="The receipt")
    currency: str = "EUR"


class Receipt(BaseModel):
    shop: str
    day: date
    total: Decimal = Field(ge=0)


def png(width: int, height: int, dark: set[tuple[int, int]]) -> bytes:
    """Return a small gray PNG image in which the given points are dark."""
    rows = b"".join(b"\0" + bytes(40 if (x, y) in dark else 250 for x in range(width)) for y in range(height))
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


PICTURE = png(64, 32, {(x, y) for y in (6, 14, 22) for x in range(8, 56 - y)})


@tool
def enlarge(line: int) -> dict[str, object]:
    """Look closer at one line of the receipt.

    Args:
        line: Which one, from the top
    """
    # A model cannot pass an image as an argument. It passes the number of a line, and the tool returns an image.
    closer = png(64, 8, {(x, y) for y in (3, 4) for x in range(8, 56 - 8 * line)})
    return {"line": line, "closer": Image.from_bytes(closer, "image/png", f"line-{line}.png")}


class Receipts(module[Photo, Receipt]):
    """Read the receipt. Enlarge a line that is hard to read."""

    model = ScriptedModel([call("enlarge", line=3), finish(shop="Oak & Sons", day="2026-11-16", total="12.40")])
    tools = [enlarge]
    max_steps = 5


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "receipt.png"
        path.write_bytes(PICTURE)
        run = Receipts().run(photo=Image.from_path(path))
    print(f"{run.output!r}\n")
    print("The messages of the run, with their images:")
    for message in run.history:
        parts = message["content"] if isinstance(message["content"], list) else [message["content"]]
        for part in parts:  # The `repr` of image data is a short description.
            print(f"  {message['role']}: {part}")


if __name__ == "__main__":
    main()
