"""Whether a run in phases goes on with the phases that it began with."""

from tfscale.distribute.agreement import first_difference


def check_phases(position, present, where):
    """Raises ValueError unless the phases that have begun are those of the saved run.

    A position (epoch, step) means something only where the phases before it are the same; of the
    phase that is under way, the end may change. Later phases may be others.

    Args:
        position: `Position` of a checkpoint.
        present: list of the present phases' descriptions (`tfscale.progressive.Phase`); None for
            a run without phases.
        where: path of the checkpoint, for the message.
    """
    saved = position.phases
    if not saved and not present:
        return
    if not saved or not present:
        had, has = ("phases", "none") if saved else ("no phases", "some")
        raise ValueError(
            f"{where} was saved by a run with {had}, but this run has {has}: a step of the one is "
            "not a step of the other. Use tfscale.progressive.fit for both or for neither, or "
            "another checkpoint directory for the new run."
        )
    reached = position.epoch + bool(position.step)
    begin = 0
    for number, before in enumerate(saved):
        end = begin + before["epochs"]
        now = present[number] if number < len(present) else {}
        is_last_begun = (position.epoch, position.step) <= (end, 0)
        if is_last_begun and begin + now.get("epochs", 0) >= reached:
            before = before | {"epochs": now["epochs"]}
        difference = first_difference(before, now, f"phase {number + 1}")
        if difference:
            name, was, value = difference
            raise ValueError(
                f"{where} was saved with {name} = {was}, but this run has {value}, and that phase "
                "has begun. Use the saved value (phases that have not begun may change), or "
                "another checkpoint directory for the new run."
            )
        if is_last_begun:
            return
        begin = end
