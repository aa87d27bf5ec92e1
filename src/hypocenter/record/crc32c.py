"""The checksum of TFRecords."""

from __future__ import annotations

_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected


def _table() -> list[int]:
    table: list[int] = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def masked_crc32c(data: bytes) -> int:
    """Return the checksum of a TFRecord: CRC-32C, rotated and shifted by a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF
