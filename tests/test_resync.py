"""The next record after damage is found, and nothing else."""

import time

import numpy as np
import pytest
import tensorflow as tf

from tests import record_files
from tfscale.data import resync


def plain_checksum(data):
    """The oracle: CRC-32C bit by bit, masked as in TFRecords."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def write(path, payloads):
    """Writes a TFRecord file; returns where each frame begins."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    sizes = [len(payload) + resync.FRAME for payload in payloads]
    return np.cumsum([0, *sizes[:-1]]).tolist()


def frames_by_header(path):
    """The oracle: every byte tried in plain Python."""
    data = path.read_bytes()
    return [
        at
        for at in range(len(data) - 15)
        if at + int.from_bytes(data[at : at + 8], "little") + 16 <= len(data)
        and plain_checksum(data[at : at + 8]).to_bytes(4, "little") == data[at + 8 : at + 12]
    ]


def test_checksums_are_those_of_the_files():
    # CRC-32C of 32 zero bytes is 0x8a9136aa (RFC 3720, B.4).
    crc = 0x8A9136AA
    assert plain_checksum(bytes(32)) == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32
    assert plain_checksum(bytes(32)) == 0x0FD7FFFA  # RFC 3720, B.4: 8a9136aa before it is masked
    lengths = [0, 1, 255, 256, 110_000, 2**32 - 1, 2**32, 2**63 + 12345, 2**64 - 1]
    wanted = [plain_checksum(length.to_bytes(8, "little")) for length in lengths]
    assert resync.masked_crc32c(np.array(lengths, np.uint64)).tolist() == wanted
    assert int(resync.masked_crc32c(110_000)) == wanted[4]


@pytest.mark.parametrize("kind", ["random", "zeros", "ones", "empty"])
def test_every_frame_is_found_from_every_byte(tmp_path, kind):
    sizes = [0, 1, 11, 40, 300, 5]
    payloads = {
        "random": [np.random.RandomState(n).bytes(size) for n, size in enumerate(sizes)],
        "zeros": [bytes(size) for size in sizes],
        "ones": [b"\xff" * size for size in sizes],
        "empty": [b""] * 6,
    }[kind]
    path = tmp_path / "a.tfrecord"
    places = write(path, payloads)
    assert frames_by_header(path) == places
    for start in range(path.stat().st_size + 20):
        wanted = next((place for place in places if place >= start), None)
        assert resync.next_frame(str(path), start) == wanted


def test_across_the_border_of_two_reads(tmp_path, monkeypatch):
    path = tmp_path / "a.tfrecord"
    places = write(path, [np.random.RandomState(n).bytes(50) for n in range(4)])
    for chunk in (1, 5, 12, 13, 66, 67):
        monkeypatch.setattr(resync, "CHUNK", chunk)
        for start in range(1, path.stat().st_size):
            wanted = next((place for place in places if place >= start), None)
            assert resync.next_frame(str(path), start) == wanted, (chunk, start)


def test_a_record_that_the_end_of_the_file_cuts_is_none(tmp_path):
    path = tmp_path / "a.tfrecord"
    places = write(path, [b"a" * 90, b"b" * 90, b"c" * 90])
    path.write_bytes(path.read_bytes()[:-1])
    assert resync.next_frame(str(path), 1) == places[1]
    assert resync.next_frame(str(path), places[1] + 1) is None


@pytest.mark.parametrize("damage", ["length", "checksum", "inserted", "removed", "overwritten"])
def test_one_damage_loses_one_record(tmp_path, damage):
    path = tmp_path / "a.tfrecord"
    places = write(path, [record_files.serialised(number) for number in range(6)])
    data = path.read_bytes()
    second, third = places[2], places[3]
    path.write_bytes({
        "length": data[:second] + bytes([data[second] ^ 1]) + data[second + 1 :],
        "checksum": data[: second + 9] + bytes([data[second + 9] ^ 1]) + data[second + 10 :],
        "inserted": data[: second + 30] + b"more" + data[second + 30 :],
        "removed": data[: second + 30] + data[second + 37 :],
        "overwritten": data[:second] + bytes(500) + data[second + 500 :],
    }[damage])  # fmt: skip
    moved = {"inserted": 4, "removed": -7}.get(damage, 0)
    assert resync.next_frame(str(path), second + 1) == third + moved
    assert resync.next_frame(str(path), third + 1 + moved) == places[4] + moved


def test_walk_names_what_is_lost(tmp_path):
    path = tmp_path / "a.tfrecord"
    places = write(path, [bytes([number]) * 90 for number in range(7)])
    data = bytearray(path.read_bytes())
    data[places[1]] ^= 1
    data[places[3] + 50] ^= 1  # in a payload: the frame is whole
    data[places[4] + 3 : places[5] + 3] = bytes(106)
    path.write_bytes(data[:-20])
    found = list(resync.walk(str(path)))
    assert [(offset, size) for offset, size, fault in found if not fault] == [
        (places[number], 106) for number in (0, 2, 3)
    ]
    (one, two) = [each for each in found if each[2]]
    assert one[:2] == (places[1], 106) and "length is damaged" in one[2]
    # The sixth record's length is gone, and the end of the file cuts the last one.
    assert two[:2] == (places[4], len(data) - 20 - places[4])
    assert sum(size for _, size, _ in found) == len(data) - 20
    places = write(path, [bytes(90)] * 3)
    path.write_bytes(path.read_bytes()[: places[2] + 7])
    *_, last = resync.walk(str(path))
    assert last == (places[2], 7, "the file ends inside it (truncated)")
    path.write_bytes(b"")
    assert list(resync.walk(str(path))) == []


@pytest.mark.parametrize("begin, count", [(150, 9), (200, 5), (130, 100), (213, 3)])
def test_bytes_taken_out_lose_only_their_records(tmp_path, begin, count):
    path = tmp_path / "a.tfrecord"
    places = write(path, [bytes([number]) * (90 + 7 * number) for number in range(6)])
    sizes = np.diff([*places, path.stat().st_size]).tolist()
    data = path.read_bytes()
    path.write_bytes(data[:begin] + data[begin + count :])
    kept = [
        (place if place < begin else place - count, size)
        for place, size in zip(places, sizes, strict=True)
        if place + size <= begin or place >= begin + count
    ]
    found = list(resync.walk(str(path)))
    frames = [(offset, size) for offset, size, fault in found if not fault]
    damaged = [frame for frame in frames if frame not in kept]  # for their reader to find out
    assert len(frames) == len(kept) + len(damaged)
    assert all(offset < begin < offset + size for offset, size in damaged)
    assert sum(size for _, size, _ in found) == len(data) - count
    assert [offset for offset, *_ in found] == sorted(offset for offset, *_ in found)


def test_fast_enough_for_a_file_without_any_frame(tmp_path):
    path = tmp_path / "zeros"
    for content in (bytes(4 << 20), np.random.RandomState(0).bytes(16 << 20)):
        path.write_bytes(content)  # of zeros, every place is a likely one
        started = time.process_time()
        assert resync.next_frame(str(path), 0) is None
        assert time.process_time() - started < 4
