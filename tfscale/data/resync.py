"""Finds the next record after damage in a TFRecord file.

A record's frame begins with its length and a checksum of that length. Where a length is damaged,
the place of the next record is lost; the records behind it are not: this looks for the next twelve
bytes that can be the beginning of a frame.
"""

import functools

import numpy as np
import tensorflow as tf

HEADER, FRAME = 12, 16  # bytes before the payload, and around it
CHUNK = 4 << 20

_POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed


@functools.cache
def _tables():
    """Returns uint32 [8, 256]: what each value of each of 8 bytes adds to a CRC-32C."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    tables = [table]
    for _ in range(7):
        tables.insert(0, (tables[0] >> 8) ^ table[tables[0] & 0xFF])
    return np.stack(tables)


def masked_crc32c(lengths):
    """Returns the checksums that frame TFRecord lengths: CRC-32C, rotated, plus a constant.

    ``crc = ~xor_k table[k][byte k of (length ^ 0xFFFFFFFF)]``, then
    ``(crc >> 15 | crc << 17) + 0xA282EAD8``. A CRC is linear, so that the eight bytes of a length
    can be looked up independently of each other, for many lengths at a time.

    Args:
        lengths: integer or array of uint64.

    Returns:
        uint32 array of the same shape.

    Example:
        >>> hex(masked_crc32c(0))
        '0x7980329'

    Source: the TFRecord format, https://www.tensorflow.org/tutorials/load_data/tfrecord; Kounavis
    and Berry, "A systematic approach to building high performance, software-based, CRC
    generators", 2005.
    """
    lengths = np.asarray(lengths, np.uint64)
    crc = np.full(lengths.shape, 0xFFFFFFFF, np.uint32)
    size = -(-int(lengths.max(initial=0)).bit_length() // 8)
    for byte, table in enumerate(_tables()):
        # The register starts as ones, which is to say: the first four bytes come inverted.
        inverted = 0xFF if byte < 4 else 0
        if byte < size:
            crc ^= table[(lengths >> np.uint64(8 * byte)).astype(np.uint8) ^ inverted]
        else:
            crc ^= table[inverted]  # upper bytes of lengths are zero
    return ((crc >> 15) | (crc << 17)) + np.asarray(0xA282EAD8, np.uint32)


def next_frame(path, start):
    """Returns where the next frame of a TFRecord file begins.

    That is the first byte from `start` on at which a length stands that has a valid checksum and
    fits in the file. The chance that other data looks like one is 2^-32 for each byte.

    Args:
        path: `str`.
        start: `int`, byte to begin at: one after that of the damaged frame.

    Returns:
        `int`, or None if there is none before the end of the file.

    Example:
        ```python
        lost_to = next_frame("train-00000-of-00001.tfrecord", damaged_at + 1)
        ```
    """
    room = tf.io.gfile.stat(path).length - start - FRAME
    if room < 0:
        return None
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(start)
        data = b""
        while more := file.read(CHUNK):
            data += more
            if len(data) < HEADER:
                continue
            found = _first_header(data, room)
            if found is not None:
                return start + found
            passed = len(data) - HEADER + 1
            data, start, room = data[passed:], start + passed, room - passed
    return None


def walk(path):
    """Walks through the frames of a TFRecord file, from one to the next that is whole.

    Only lengths are looked at: whether a payload is as it was written, its reader finds out. Where
    bytes were taken out of a frame, so that its length reaches into the next one, it is that
    frame which is lost.

    Args:
        path: `str`.

    Yields:
        `(offset, size, fault)`: the place and all bytes of a frame, and None; or those of a
        region that is lost, and a `str`: why.

    Example:
        ```python
        lost = [(offset, size) for offset, size, fault in walk(path) if fault]
        ```
    """
    end, offset, before = tf.io.gfile.stat(path).length, 0, None
    with tf.io.gfile.GFile(path, "rb") as file:
        while offset < end:
            file.seek(offset)
            size, fault = _frame(file.read(HEADER), end - offset)
            if not fault:
                if before is not None:
                    yield (*before, None)
                before = offset, size
                offset += size
                continue
            found = next_frame(path, (offset if before is None else before[0]) + 1)
            found = end if found is None else found
            if before is not None and found < offset:
                offset, fault = before[0], "another record begins inside it: bytes are missing"
            elif before is not None:
                yield (*before, None)
            yield offset, found - offset, fault
            offset, before = found, None
    if before is not None:
        yield (*before, None)


def _frame(header, room):
    """Returns `(size, fault)` of the frame with this header, where `room` bytes are left."""
    length = int.from_bytes(header[:8], "little")
    if room < FRAME:
        return 0, "the file ends inside it (truncated)"
    if int(masked_crc32c(length)) != int.from_bytes(header[8:], "little"):
        return 0, "its length is damaged, or this is no TFRecord"
    if length + FRAME > room:
        return 0, f"its {length} bytes go past the end of the file (truncated)"
    return length + FRAME, None


def _first_header(data, room):
    """Returns the first place in `data` of a frame that fits in `room` bytes, or None.

    Args:
        data: `bytes`.
        room: `int`, bytes that a record at the beginning of `data` may have.
    """
    # A length and a checksum begin at every byte: both are read where they lie, unaligned.
    count = len(data) - HEADER + 1
    lengths = np.ndarray([count], "<u8", data, strides=[1])
    sums = np.ndarray([count], "<u4", data, offset=8, strides=[1])
    # Few places pass this first test, as the upper bytes of a true length are zero.
    likely = np.flatnonzero(lengths <= np.uint64(max(room, 0)))
    likely = likely[lengths[likely].astype(np.int64) + likely <= room]
    hits = likely[masked_crc32c(lengths[likely]) == sums[likely]]
    return int(hits[0]) if len(hits) else None
