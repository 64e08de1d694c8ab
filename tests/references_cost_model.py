"""The machine that the tests of the cost model calibrate to."""

from tfscale.distribute.cost_model import Costs

# What the machines of these tests are made of, so that a calibration has something to find.
TRUE = Costs(
    link_overhead=0.05,
    uneven_connections=0.2,
    step_seconds=8e-4,
    transport=2e-9,
    local=3e-10,
    ring=5e-10,
    bfloat16=8e-10,
    float16=1e-9,
    int8=3e-9,
    topk=5e-9,
    interference=0.6,
)
