"""The runs that must not depend on how the global batch is split, for test_parity.py.

Every run starts from the same weights and sees the same global batches; each returns a flat
`dict` of what training leaves behind: weights, moving statistics, optimizer slots, metrics.
"""

import numpy as np

STEPS = 8
GLOBAL_BATCH = 16
CLASSES = 3


def images(count, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    x = rng.normal(size=(count, 8, 8, 3)) + labels[:, None, None, None] - 1
    return x.astype(np.float32), labels.astype(np.int32)


def small_model(keras, norm=None, regularizer=None):
    # No bias before a norm, as in every ResNet; and TensorFlow's oneDNN kernels for CPUs fail on
    # the bias gradient of a convolution over an empty batch ("Missing 1-th output").
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(
        4,
        3,
        use_bias=norm is None,
        kernel_initializer="he_normal",
        kernel_regularizer=regularizer,
        name="conv",
    )(inputs)
    if norm is not None:
        x = norm(name="norm")(x)
    x = keras.layers.Activation("relu", name="relu")(x)
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    outputs = keras.layers.Dense(
        CLASSES, activation="softmax", dtype="float32", kernel_regularizer=regularizer, name="head"
    )(x)
    return keras.Model(inputs, outputs)


def state_of(model):
    """Weights, moving statistics and optimizer slots as arrays, by position."""
    found = {f"weight/{i}/{v.name}": v.numpy() for i, v in enumerate(model.weights)}
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    slots = {f"slot/{i}": v.numpy() for i, v in enumerate(inner.variables)}
    return found | slots


def fit(strategy, optimizer, *, examples=STEPS * GLOBAL_BATCH, epochs=1, policy=None, **model_args):
    import tensorflow as tf

    from tfscale import keras

    keras.mixed_precision.set_global_policy(policy or "float32")
    keras.utils.set_random_seed(7)
    x, y = images(examples)
    x_val, y_val = images(21, seed=1)
    try:
        with strategy.scope():
            model = small_model(keras, **model_args)
            model.compile(optimizer(), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        history = model.fit(
            tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH),
            validation_data=tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(GLOBAL_BATCH),
            epochs=epochs,
            verbose=0,
        ).history
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return state_of(model) | {f"metric/{k}": np.array(v) for k, v in history.items()}


def own_loop(strategy, optimizer, *, examples=STEPS * GLOBAL_BATCH):
    """A user's own training loop with strategy.run, on the same data as `fit`."""
    import tensorflow as tf

    from tfscale import keras
    from tfscale.layers import GroupedSyncBatchNormalization

    keras.utils.set_random_seed(7)
    x, y = images(examples)
    with strategy.scope():
        model = small_model(keras, norm=GroupedSyncBatchNormalization)
        opt = optimizer()
        opt.build(model.trainable_variables)
        model.optimizer = opt
    data = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH, drop_remainder=True)
    )

    @tf.function
    def train_step(batch):
        def replica_step(features, labels):
            with tf.GradientTape() as tape:
                per_example = keras.losses.sparse_categorical_crossentropy(
                    labels, model(features, training=True)
                )
                loss = tf.reduce_sum(per_example) / GLOBAL_BATCH
            gradients = tape.gradient(loss, model.trainable_variables)
            opt.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    losses = [float(train_step(batch)) for batch in data]
    return state_of(model) | {"metric/loss": np.array([np.mean(losses)])}


def from_records(strategy, folder):
    """A residual network from JPEG records through the whole input pipeline."""
    from tfscale import data, keras, layers, models, optimizers

    keras.utils.set_random_seed(7)
    with strategy.scope():
        model = models.resnet.resnet_small(
            input_shape=(16, 16, 3),
            num_classes=CLASSES,
            norm=layers.GroupedSyncBatchNormalization,
        )
        model.compile(
            optimizers.LARS(1.0), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
        )

    def train(context):
        return data.train_dataset(folder, 8, 16, input_context=context, seed=3, flip=True)

    def held_out(context):
        return data.eval_dataset(folder, 8, 16, input_context=context, split="train")

    history = model.fit(
        strategy.distribute_datasets_from_function(train),
        validation_data=strategy.distribute_datasets_from_function(held_out),
        validation_steps=5,
        epochs=2,
        steps_per_epoch=4,
        verbose=0,
    ).history
    return state_of(model) | {f"metric/{k}": np.array(v) for k, v in history.items()}


def all_runs(folder):
    """Every run under the strategy that this process's TF_CONFIG and devices give."""
    from tfscale import distribute, keras, layers, optimizers

    strategy = distribute.create_strategy("auto")
    batch_norm = layers.GroupedSyncBatchNormalization

    def sgd(**kwargs):
        return lambda: keras.optimizers.SGD(0.1, momentum=0.9, **kwargs)

    def lars(**kwargs):
        return lambda: optimizers.LARS(5.0, **kwargs)

    uneven = 7 * GLOBAL_BATCH + 5
    results = {
        "sgd": fit(strategy, sgd(), norm=batch_norm, epochs=2),
        "sgd, one epoch": fit(strategy, sgd(), norm=batch_norm),
        "lars": fit(strategy, lars(), norm=batch_norm),
        "lars, scaled, nesterov": fit(
            strategy, lars(momentum_form="scaled", nesterov=True), norm=batch_norm
        ),
        "l2 and clipping": fit(
            strategy,
            sgd(global_clipnorm=0.5),
            norm=batch_norm,
            regularizer=keras.regularizers.L2(0.01),
        ),
        "uneven": fit(
            strategy,
            sgd(clipnorm=0.5),
            examples=uneven,
            epochs=2,
            norm=batch_norm,
            regularizer=keras.regularizers.L2(0.01),
        ),
        "uneven, one example": fit(strategy, sgd(), examples=2 * GLOBAL_BATCH + 1, norm=batch_norm),
        "own loop": own_loop(strategy, sgd()),
        "mixed_bfloat16": fit(strategy, sgd(), norm=batch_norm, policy="mixed_bfloat16"),
        "mixed_float16": fit(strategy, lars(), norm=batch_norm, policy="mixed_float16"),
        "records": from_records(strategy, folder),
    }
    return results
