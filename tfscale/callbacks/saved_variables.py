"""Which variables a checkpoint holds, and whether they are those of a model."""

import itertools
import re

import tensorflow as tf

# What TensorFlow raises for files that are absent, cut short, changed, or of other objects.
READ_ERRORS = (tf.errors.OpError, AssertionError, IndexError, RuntimeError, ValueError)


def all_variables(model):
    """All variables that a checkpoint of the model holds, in a fixed order."""
    objects = tf.train.TrackableView(model).descendants()
    return [thing for thing in objects if isinstance(thing, tf.Variable)]


def describe(variables):
    """Name, dtype and shape of each variable, as JSON can hold them."""
    # Keras numbers a layer without a name by how many there were before in the process.
    return [
        [re.sub(r"_\d+(?=[/:])", "", v.name), v.dtype.name, v.shape.as_list()] for v in variables
    ]


def check_variables(saved, present, where):
    """Raises ValueError with the first variable in which two descriptions differ."""
    for i, (old, new) in enumerate(itertools.zip_longest(saved, present)):
        if not (old and new and old[1:] == new[1:] and _same_name(old[0], new[0])):
            raise ValueError(
                f"{where} was saved from another model: its variable {i} is {_named(old)}, "
                f"this model's is {_named(new)} (it has {len(saved)} variables, this model "
                f"{len(present)}). Build the model and optimizer that were saved, or use another "
                "checkpoint directory."
            )


def _same_name(old, new):
    # Slots have the optimizer's name in front, or not, depending on who made them.
    return f"/{old}".endswith(f"/{new}") or f"/{new}".endswith(f"/{old}")


def _named(description):
    if description is None:
        return "absent"
    name, dtype, shape = description
    return f"{name} {dtype}{shape}"


def damaged_variable(prefix):
    """The first variable of a checkpoint that cannot be read, as text for a message."""
    try:
        reader = tf.train.load_checkpoint(prefix)
        for key in sorted(k for k in reader.get_variable_to_shape_map() if not k.startswith("_")):
            try:
                reader.get_tensor(key)
            except READ_ERRORS:
                return " at " + key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
    except READ_ERRORS:
        pass
    return ""
