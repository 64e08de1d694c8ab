"""What reading and decoding cost, tried on a few records."""

import dataclasses
import queue
import threading
import time

import numpy as np
import tensorflow as tf

from tfscale.data import cache_pictures, jpeg, native, reading

RECORDS, SECONDS, FIRST_SECONDS = 16, 0.5, 1.0
QUALITY = 90


@dataclasses.dataclass(frozen=True)
class Costs:
    """Of one record.

    Attributes:
        read_seconds: float, of time, with as many calls at once as the pipeline has; inf if
            none came in time.
        read_bytes: float.
        decode_seconds: float, of CPU: decode the window of a random crop, and resize it; nan if
            nothing could be decoded.
        short_side: int, of the copy that `copy_seconds` is about.
        copy_seconds: float, as `decode_seconds`, from a copy reduced to `short_side` at quality
            90; nan if the pictures are no larger.
    """

    read_seconds: float
    read_bytes: float
    decode_seconds: float = float("nan")
    short_side: int = 0
    copy_seconds: float = float("nan")


def measure(contract, worker, store, calls, image_size, seconds=SECONDS):
    """Reads and decodes records of a split, drawn at random, for `seconds` or so.

    Args:
        contract: `contract.DataContract`.
        worker: `int`.
        store: `cache.Store`.
        calls: `int`, records read at a time.
        image_size: (height, width) of the pictures wanted.
        seconds: `float`. At least one record is decoded, however long that takes.

    Returns:
        `Costs`.
    """
    end = time.monotonic() + seconds
    # Calls that all wait as long come in bursts: whole ones are measured, after a first.
    count = calls * max(3, -(-RECORDS // calls))
    records = np.random.default_rng().choice(contract.owned(worker), count)
    found, read_seconds = _read(contract, records, store, calls, seconds / 2)
    if not found:
        return Costs(float("inf"), 0.0)
    short_side = round(max(image_size) / 0.875)
    decode, copy, cost = [], [], _cost_of_kept if store.decoded else _cost
    for payload in found[:RECORDS]:
        try:
            if not decode:
                cost(payload, image_size)  # the first time an op runs takes longer
            decode.append(cost(payload, image_size))
            small = None if store.decoded else reduced(payload, short_side)
            if small is not None:
                copy.append(cost(small, image_size))
        except tf.errors.OpError:
            continue  # a bad record: the run names it when it comes to it
        if time.monotonic() > end:
            break
    return Costs(
        read_seconds,
        float(np.mean([len(payload) for payload in found])),
        float(np.mean(decode)) if decode else float("nan"),
        short_side,
        # Pictures of which most are small enough gain nothing by a copy.
        float(np.mean(copy)) if 2 * len(copy) > len(decode) else float("nan"),
    )


def _read(contract, records, store, calls, seconds):
    """Returns `(payloads, seconds of one)`; the payloads are kept pictures where there are such.

    The first may take as long as `FIRST_SECONDS`.
    """
    index = contract.index
    paths, _, offsets, _ = zip(*(index.locate(int(r)) for r in records), strict=True)
    fetch = store.packed if store.decoded else store.example
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = calls
    with tf.init_scope(), tf.device("CPU:0"):
        dataset = tf.data.Dataset.from_tensor_slices((records, list(paths), list(offsets)))
        dataset = dataset.map(fetch, num_parallel_calls=calls, deterministic=False)
        iterator = iter(dataset.ignore_errors().with_options(options))
    came, start = queue.SimpleQueue(), time.monotonic()
    # By a thread, as a read may take for ever.
    thread = threading.Thread(target=_pass_on, args=(iterator, came), daemon=True)
    del iterator
    thread.start()
    found, times = [], [start]
    while True:
        end = start + (seconds if found else FIRST_SECONDS)
        try:
            item = came.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        if item is None:
            break
        found.append(item[0])
        times.append(item[1])
    return found, _seconds_of_one(np.array(times), calls)


def _seconds_of_one(times, calls):
    """Returns the time of one in the quickest stretch of whole bursts.

    The quickest, as a reader that has to wait for a core is late, but not by the source.
    """
    length = calls * -(-8 // calls)
    came = times[calls:]  # the first burst also started the threads
    if len(came) > length:
        return float(np.min(came[length:] - came[:-length])) / length
    return float(times[-1] - times[0]) / max(1, len(times) - 1)


def _pass_on(iterator, came):
    try:
        for element in iterator:
            came.put((element.numpy(), time.monotonic()))
    except tf.errors.OpError:
        pass
    came.put(None)


def _cost(payload, image_size):
    """Seconds of this thread's CPU for a crop of half of the picture's area, resized."""
    encoded = _encoded(payload)
    is_jpeg = encoded.startswith(jpeg.JPEG_START)
    if not is_jpeg:
        window = None
    else:
        window = _half(tf.io.extract_jpeg_shape(encoded).numpy())
        if native.available():
            begin = time.thread_time()
            *_, done = native.decode_examples([payload], [window], [False], image_size)
            spent = time.thread_time() - begin
            if done[0]:
                return spent
    begin = time.thread_time()
    if window is None:
        image = jpeg.decode(encoded)
        image = jpeg.crop(image, _half(image.shape))
    else:
        image = tf.io.decode_and_crop_jpeg(encoded, window, 3, dct_method=jpeg.DCT)
    _resize(image, image_size)
    return time.thread_time() - begin


def _cost_of_kept(payload, image_size):
    """The same, of a picture that is kept decoded."""
    window = _half(cache_pictures.shapes([payload]).numpy()[0])
    begin = time.thread_time()
    if native.available():
        native.resize_pictures([payload], [window], [False], image_size)
    else:
        _resize(jpeg.crop(cache_pictures.unpack(payload)[0], window), image_size)
    return time.thread_time() - begin


def _resize(image, image_size):
    """The op alone: its Python wrapper costs as much as it does."""
    image = tf.raw_ops.ResizeBilinear(
        images=image[tf.newaxis], size=image_size, half_pixel_centers=True
    )
    return tf.cast(image + 0.5, tf.uint8)


def _half(shape):
    """The window in the middle that holds half of the area."""
    height, width = (max(1, round(0.7 * int(side))) for side in shape[:2])
    return [(int(shape[0]) - height) // 2, (int(shape[1]) - width) // 2, height, width]


def _encoded(payload):
    fields = tf.train.Example.FromString(payload).features.feature
    return b"".join(fields[reading.ENCODED].bytes_list.value)


def reduced(payload, short_side):
    """Returns the example as a copy with that short side has it; None if it is no larger."""
    image = jpeg.decode(_encoded(payload))
    if min(image.shape[:2]) <= short_side:
        return None
    small = jpeg.shrink(image, short_side)
    encoded = tf.io.encode_jpeg(small, quality=QUALITY).numpy()
    height, width = small.shape[:2]
    return reading.example(encoded, 0, height=height, width=width).SerializeToString()
