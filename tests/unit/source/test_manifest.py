from __future__ import annotations

import pytest

from lance_stream.source.manifest import manifest_numbers


def test_numbers_at_the_top_of_a_message() -> None:
    parts = (b"\x08\x96\x01", b"\x12\x03abc", b"\x19" + bytes(8), b"\x25" + bytes(4), b"\x58\x07")
    assert manifest_numbers(b"".join(parts)) == {1: 150, 11: 7}
    assert manifest_numbers(b"") == {}


@pytest.mark.parametrize("damaged", [b"\x08", b"\x08\x96", b"\x0b"])
def test_what_is_no_message(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="manifest"):
        manifest_numbers(damaged)
