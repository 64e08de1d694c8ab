"""How a program selects what a row of the simulator's table stands for."""

from experiments.allreduce.methods import parse_method

IMPORTS = "from tfscale.distribute import Hierarchical2DAllReduce, TopK, create_strategy"


def selection(name):
    """Returns the Python expression that creates the strategy of a method; None for ``tree``.

    Example:
        >>> selection("2d+int8:bucket=adaptive")
        'create_strategy(cross_device_ops=Hierarchical2DAllReduce("int8", bucket_bytes="adaptive"))'
    """
    if name == "tree":
        return None
    method = parse_method(name)
    if method.family == "stock":
        if not method.pack:
            return 'create_strategy(cross_device_ops="stock")'
        # Keras's fit passes no options of its own; they come from the strategy's constructor.
        return (
            "tf.distribute.MultiWorkerMirroredStrategy(communication_options="
            f"tf.distribute.experimental.CommunicationOptions(bytes_per_pack={method.pack}))"
        )
    arguments = []
    if method.ratio is not None:
        arguments.append(f"TopK(ratio={method.ratio:g})")
    elif method.compression:
        arguments.append(f'"{method.compression}"')
    if method.bucket is not None:
        bucket = '"adaptive"' if method.bucket == "adaptive" else method.bucket
        arguments.append(f"bucket_bytes={bucket}")
    if method.streams is not None:
        arguments.append(f"streams={method.streams}")
    if method.grid is not None:
        arguments.append(f"worker_grid={method.grid}")
    if not arguments:
        return "create_strategy()"
    return f"create_strategy(cross_device_ops=Hierarchical2DAllReduce({', '.join(arguments)}))"


def describe(names):
    """Returns lines for people: what to write for each method."""
    width = max(map(len, names))
    chosen = [(name, selection(name)) for name in names]
    lines = [f"  {name.ljust(width)}  {code}" for name, code in chosen if code]
    return [f"in a program ({IMPORTS}):", *lines] if lines else []
