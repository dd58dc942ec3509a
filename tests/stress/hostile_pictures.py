"""Hostile pictures: name -> bytes. Some are only unusual and may be decoded."""

import gzip
import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image
from raw_http import MARKER

PIXELS = (np.arange(28 * 28, dtype=np.uint32).reshape(28, 28) % 256).astype(np.uint8)
SIGNATURE = b"\x89PNG\r\n\x1a\n"
MARK = MARKER.encode()


def saved(kind: str, image: Image.Image | None = None, **options: object) -> bytes:
    buffer = io.BytesIO()
    (image or Image.fromarray(PIXELS)).save(buffer, format=kind, **options)
    return buffer.getvalue()


def chunk(name: bytes, content: bytes, *, checksum: int | None = None, length: int | None = None) -> bytes:
    crc = zlib.crc32(name + content) if checksum is None else checksum
    return struct.pack(">I", len(content) if length is None else length) + name + content + struct.pack(">I", crc)


def ihdr(width: int = 28, height: int = 28, depth: int = 8, colour: int = 0, *ways: int) -> bytes:
    compression, filters, interlace = ways or (0, 0, 0)
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, compression, filters, interlace))


def idat(size: int = 29 * 28, fill: bytes = b"\0") -> bytes:
    return chunk(b"IDAT", zlib.compress(fill * size, 9))


END = chunk(b"IEND", b"")


def png(*chunks: bytes) -> bytes:
    return SIGNATURE + b"".join([*chunks, END])


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def looping_exif() -> bytes:
    """A directory of tags whose next directory is itself, and a tag that points beyond the file."""
    entry = struct.pack("<HHII", 0x0112, 3, 1, 6) + struct.pack("<HHII", 0x8769, 4, 1, 8)
    far = struct.pack("<HHII", 0x010E, 2, 2**31, 2**31)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", 3) + entry + far + struct.pack("<I", 8)


def pngs() -> Iterator[tuple[str, bytes]]:
    bomb = zlib.compress(b"\0" * 2**26, 9)
    good = saved("PNG")
    yield "bomb: 50000 x 50000", png(ihdr(50_000, 50_000), idat(100_000))
    yield "bomb: 2000 x 2000, 16-bit RGBA", png(ihdr(2000, 2000, 16, 6), idat(2000 * 16_001))
    yield "bomb: 64 MB of compressed text", png(ihdr(), chunk(b"zTXt", MARK + b"\0\0" + bomb), idat())
    yield "bomb: 64 MB of international text", png(ihdr(), chunk(b"iTXt", MARK + b"\0\1\0\0\0" + bomb), idat())
    yield "bomb: 64 MB of colour profile", png(ihdr(), chunk(b"iCCP", b"icc\0\0" + bomb), idat())
    yield "bomb: 64 MB of pixels for 28 x 28", png(ihdr(), chunk(b"IDAT", bomb))
    yield "bomb: 100,000 empty data chunks", png(ihdr(), chunk(b"IDAT", b"") * 100_000, idat())
    yield "bomb: 50,000 texts", png(ihdr(), chunk(b"tEXt", b"Comment\0" + MARK) * 50_000, idat())
    yield "bomb: a profile inside a profile", png(ihdr(), chunk(b"iCCP", b"a\0\0" + zlib.compress(bomb)), idat())
    yield "lie: as wide as can be", png(ihdr(2**31 - 1, 1), idat())
    yield "lie: wider than can be", png(ihdr(2**32 - 1, 2**32 - 1), idat())
    yield "lie: more rows than data", png(ihdr(28, 1000), idat())
    yield "lie: fewer rows than data", png(ihdr(28, 2), idat())
    yield "lie: no width", png(ihdr(0, 28), idat())
    yield "lie: 3 bits a pixel", png(ihdr(28, 28, 3), idat())
    yield "lie: colour type 5", png(ihdr(28, 28, 8, 5), idat())
    yield "lie: compression method 9", png(ihdr(28, 28, 8, 0, 9, 0, 0), idat())
    yield "lie: interlace method 7", png(ihdr(28, 28, 8, 0, 0, 0, 7), idat())
    yield "lie: row filter 9", png(ihdr(), idat(29 * 28, b"\x09"))
    yield "lie: a chunk of 4 GB", SIGNATURE + ihdr() + chunk(b"tEXt", b"x", length=2**32 - 1) + idat() + END
    yield "lie: a chunk of negative length", SIGNATURE + ihdr() + chunk(b"IDAT", b"x", length=2**31) + END
    yield "wrong checksum of the header", png(chunk(b"IHDR", ihdr()[8:-4], checksum=0), idat())
    yield "wrong checksum of the data", png(ihdr(), chunk(b"IDAT", zlib.compress(b"\0" * 812), checksum=0))
    yield "no data", png(ihdr())
    yield "its end first", SIGNATURE + END + ihdr() + idat() + END
    yield "two headers", png(ihdr(), ihdr(3000, 3000), idat())
    yield "a palette that is missing", png(ihdr(28, 28, 8, 3), idat())
    yield "a palette too short for its pixels", png(ihdr(28, 28, 8, 3), chunk(b"PLTE", b"\1\2\3"), idat(812, b"\7"))
    yield "an animation of 2**31 frames", png(ihdr(), chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0)), idat())
    yield "EXIF that goes round", png(ihdr(), chunk(b"eXIf", looping_exif()), idat())
    yield "EXIF of a megabyte", png(ihdr(), chunk(b"eXIf", b"II*\0" + b"\xff" * 2**20), idat())
    yield "interlaced", png(ihdr(28, 28, 8, 0, 0, 0, 1), idat(2000))
    yield "palette with transparency", saved("PNG", Image.fromarray(PIXELS).convert("P"), transparency=3)
    yield "16 bits, grey", saved("PNG", Image.fromarray(PIXELS.astype(np.uint16) * 257))
    yield "1 bit", saved("PNG", Image.fromarray(PIXELS).convert("1"))
    yield "grey with alpha", saved("PNG", Image.fromarray(PIXELS).convert("LA"))
    yield "cut in half", good[: len(good) // 2]
    yield "signature and noise", SIGNATURE + bytes(range(256)) * 40
    yield "line ends changed by a mailer", good.replace(b"\r\n", b"\n")
    yield "zip behind it", good + b"PK\x03\x04" + MARK + b"PK\x05\x06" + b"\0" * 18
    yield "page inside it", png(ihdr(), chunk(b"tEXt", b"x\0<script>" + MARK + b"</script>"), idat())


def jpegs() -> Iterator[tuple[str, bytes]]:
    grey, colour = saved("JPEG"), Image.fromarray(PIXELS).convert("RGB")
    size = grey.index(b"\xff\xc0") + 5
    start, rest = grey[:2], grey[2:]
    yield "JPEG: 65535 x 65535", grey[:size] + b"\xff" * 4 + grey[size + 4 :]
    yield "JPEG: no size", grey[:size] + b"\0" * 4 + grey[size + 4 :]
    yield "JPEG: 12 bits", grey[: size - 1] + b"\x0c" + grey[size:]
    yield "JPEG: CMYK", saved("JPEG", colour.convert("CMYK"))
    yield "JPEG: progressive", saved("JPEG", colour, progressive=True)
    yield "JPEG: 500 scans", grey[:-2] + grey[grey.index(b"\xff\xda") : -2] * 500 + grey[-2:]
    yield "JPEG: no Huffman tables", grey.replace(b"\xff\xc4", b"\xff\xec")
    yield "JPEG: cut short", grey[: len(grey) * 2 // 3]
    yield "JPEG: EXIF that goes round", start + segment(0xE1, b"Exif\0\0" + looping_exif()) + rest
    yield "JPEG: EXIF of 6 MB", start + segment(0xE1, b"Exif\0\0" + b"\xff" * 65_000) * 95 + rest
    yield "JPEG: 255 pieces of a profile", start + b"".join(
        segment(0xE2, b"ICC_PROFILE\0" + bytes([255 - n, 1]) + MARK * 10) for n in range(255)
    ) + rest  # fmt: skip
    yield "JPEG: restart markers only", grey[: grey.index(b"\xff\xda") + 10] + b"\xff\xd0" * 100_000 + b"\xff\xd9"
    yield "JPEG: several pictures", saved("MPO", colour, save_all=True, append_images=[colour] * 20)
    yield "JPEG: comments", start + segment(0xFE, MARK * 3000) * 90 + rest
    yield "JPEG: page behind it", grey + b"<html>" + MARK


def others() -> Iterator[tuple[str, bytes]]:
    picture = Image.fromarray(PIXELS)
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    yield "nothing", b""
    yield "GIF by another name", saved("GIF")
    yield "GIF of 200 frames", saved("GIF", save_all=True, append_images=[picture.rotate(n) for n in range(200)])
    yield "WebP by another name", saved("WEBP")
    yield "TIFF by another name", saved("TIFF")
    yield "BMP by another name", saved("BMP")
    yield "ICO by another name", saved("ICO")
    yield "PDF by another name", saved("PDF")
    yield "PNG in gzip", gzip.compress(saved("PNG"))
    yield "SVG: a billion laughs", f'<!DOCTYPE l [<!ENTITY l0 "{MARKER}">{laughs}]><svg>&l9;</svg>'.encode()
    yield "SVG: a file of the server's", b'<!DOCTYPE s [<!ENTITY x SYSTEM "file:///etc/passwd">]><svg>&x;</svg>'
    yield "PostScript", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99999 99999\n{} loop"


HOSTILE = dict([*pngs(), *jpegs(), *others()])
