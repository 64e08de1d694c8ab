"""One worker of `experiments.input.sharing`: reads its share of the records, and counts."""

import json
import os
import time

import tensorflow as tf

import tfscale
from tfscale import cores, distribute

WARM_UP_BATCHES = 10


def read(data_dir, image_size, batch, seconds, workers):
    """What one worker does: reads its share as in training, and counts from when all can."""
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if workers > 1 else 0
    # The cluster is there for one thing: that all begin at the same time.
    strategy = distribute.create_strategy("auto")
    context = tf.distribute.InputContext(workers, index, workers)
    dataset = tfscale.data.train_dataset(data_dir, batch * workers, image_size, context)
    batches = iter(dataset)
    for _ in range(WARM_UP_BATCHES):
        next(batches)
    distribute.gather_values(strategy, "warm", index, timeout_seconds=120)
    begin, pictures = time.time(), 0
    while time.time() < begin + seconds:
        pictures += int(next(batches)[0].shape[0])
    end = time.time()
    distribute.gather_values(strategy, "measured", index, timeout_seconds=120)
    threads = cores.usable_cores()
    return {"begin": begin, "end": end, "pictures": pictures, "threads": threads}
