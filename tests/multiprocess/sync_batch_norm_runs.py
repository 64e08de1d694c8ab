"""What runs in every process of test_sync_batch_norm.py."""

import tempfile

import numpy as np
import tensorflow as tf

from tests.references_batch_norm import build, random_batches, train_step
from tfscale._keras import keras
from tfscale.distribute.strategy import create_strategy
from tfscale.layers.moving_statistics import merge_moving_statistics
from tfscale.layers.sync_batch_norm import GroupedSyncBatchNormalization

CHANNELS = 4


def batches(sizes):
    """Every replica's inputs and upstream gradients, the same arrays on every worker."""
    return random_batches(sizes, (3, CHANNELS), loc=20.0)


def steps(cases):
    """Training steps of single layers: ``{case: local replicas' results}`` and message counts."""
    strategy = create_strategy("auto")
    results = {}
    for size, sizes in cases:
        layer = build(strategy, size, (None, 3, CHANNELS))
        results[size, sizes] = train_step(strategy, layer, *batches(sizes))
    return results, count_messages(strategy)


def count_messages(strategy):
    """Collectives in the graph of a step through layers of groups 2, all and all replicas."""
    with strategy.scope():
        layers = [GroupedSyncBatchNormalization(size) for size in (2, None, None)]
        for layer in layers:
            layer.build([None, CHANNELS])

    @tf.function
    def step():
        def replica_fn():
            x = tf.ones([2, CHANNELS])
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x
                for layer in layers:
                    y = layer(y, training=True)
            return tape.gradient(y, x)

        return strategy.run(replica_fn)

    found = [op.type for op in step.get_concrete_function().graph.get_operations()]
    return {kind: found.count(kind) for kind in set(found) if kind.startswith("Collective")}


def model_of_three_layers():
    model = [keras.Input((8, 8, 3))]
    for size in (2, None, 2):
        model.append(keras.layers.Conv2D(CHANNELS, 3, use_bias=False))
        model.append(GroupedSyncBatchNormalization(size, momentum=0.8))
        model.append(keras.layers.ReLU())
    model += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)]
    return keras.Sequential(model)


def dataset(context, sizes):
    """Batches of this worker's replicas: `sizes` has a row for each step, an entry per replica."""
    rng = np.random.default_rng(5)
    per_worker = len(sizes[0]) // context.num_input_pipelines
    mine = range(
        context.input_pipeline_id * per_worker, (context.input_pipeline_id + 1) * per_worker
    )
    chosen = []
    for row in sizes:
        for replica, count in enumerate(row):
            x = rng.normal(replica, 1, size=(count, 8, 8, 3)).astype(np.float32)
            if replica in mine:
                chosen.append((x, x[:, 0, 0, :2]))
    return tf.data.Dataset.from_generator(
        lambda: iter(chosen),
        output_signature=(
            tf.TensorSpec([None, 8, 8, 3], tf.float32),
            tf.TensorSpec([None, 2], tf.float32),
        ),
    ).repeat()


def fit(strategy, sizes):
    """Trains, evaluates, predicts, merges and saves; what must agree with one process."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = model_of_three_layers()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")

    def data():
        return strategy.distribute_datasets_from_function(lambda c: dataset(c, sizes))

    steps = len(sizes)
    loss = model.fit(data(), epochs=2, steps_per_epoch=steps, verbose=0).history["loss"]
    statistics = [v for v in model.non_trainable_weights]
    local = [np.stack(strategy.experimental_local_results(v)) for v in statistics]
    weights = model.get_weights()
    merge_moving_statistics(model)
    held = [np.stack(strategy.experimental_local_results(v)) for v in statistics]
    merged = [v.numpy() for v in statistics]
    evaluation = [model.evaluate(data(), steps=steps, verbose=0)]
    x = np.random.default_rng(1).normal(size=(4, 8, 8, 3)).astype(np.float32)
    predictions = model(x).numpy()
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras")
        checkpoint = tf.train.Checkpoint(model=model)
        path = checkpoint.write(f"{folder}/checkpoint")
        # A step changes the statistics, restoring brings them back to the bit.
        model.fit(data(), steps_per_epoch=1, verbose=0)
        checkpoint.restore(path)
        restored = [np.stack(strategy.experimental_local_results(v)) for v in statistics]
    return dict(
        loss=loss,
        weights=weights,
        local=local,
        held=held,
        merged=merged,
        restored=restored,
        evaluation=evaluation,
        predictions=predictions,
        loaded=loaded(x).numpy(),
        group_sizes=[
            m.group_size for m in loaded.layers if isinstance(m, GroupedSyncBatchNormalization)
        ],
    )


def steps_and_fit(cases, sizes):
    """Both, in one launch."""
    results = steps(cases)
    return *results, fit(create_strategy("auto"), sizes)
