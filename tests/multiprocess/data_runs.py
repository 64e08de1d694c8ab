"""What the workers of `test_data` do."""


def read(train_folder, eval_folder, steps):
    """Reads `steps` steps of training and all of evaluation; counts examples with collectives."""
    import tensorflow as tf

    from tfscale.data import images, records
    from tfscale.distribute import agreement, strategy

    cluster = strategy.create_strategy("multi_worker_mirrored")
    contract = records.describe(
        train_folder, "train", 8, num_replicas=4, num_workers=2, on_error="skip"
    )
    agreement.agree(cluster, "data", contract.fingerprint())
    options = {"include_record_ids": True, "on_error": "skip"}
    train = cluster.distribute_datasets_from_function(
        lambda context: images.train_dataset(train_folder, 8, 16, context, seed=5, **options)
    )
    evaluated = cluster.distribute_datasets_from_function(
        lambda context: images.eval_dataset(eval_folder, 8, 16, context, **options)
    )

    @tf.function
    def count(element):
        def replica(image, label, ids):
            total = tf.reduce_sum(tf.cast(tf.size(ids), tf.float32))
            return tf.distribute.get_replica_context().all_reduce("SUM", total)

        return cluster.run(replica, element)

    def local(value):
        return [part.numpy() for part in cluster.experimental_local_results(value)]

    def step(element):
        counted = local(count(element))[0]
        return [local(part) for part in element], float(counted)

    iterator = iter(train)
    trained = [step(next(iterator)) for _ in range(steps)]
    return {
        "train": [([image.sum() for image in e[0]], e[2], n) for e, n in trained],
        "evaluation": [(e[2], n) for e, n in map(step, evaluated)],
        "skipped": images.skipped_records(),
        "owned": contract.owned(cluster.cluster_resolver.task_id).tolist(),
        "lines": contract.lines(cluster.cluster_resolver.task_id),
    }
