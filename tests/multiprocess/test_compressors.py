"""Real workers and collectives against the members in threads of the other tests, to the bit."""

import numpy as np
import pytest

from tests import member_groups
from tests.multiprocess import compressor_runs
from tfscale import testing

WORKERS = 3


@pytest.mark.slow
def test_workers_get_what_members_in_threads_get():
    got = testing.run_in_processes(compressor_runs.all_reduces, WORKERS, args=(WORKERS,))
    for name, compressor in compressor_runs.compressors().items():
        n = compressor_runs.rows_of(0, WORKERS)[0].size
        states = [member_groups.zero_state(compressor, n)] * WORKERS
        for step in range(compressor_runs.STEPS):
            rows = compressor_runs.rows_of(step, WORKERS)
            expected, _ = member_groups.all_reduce_by(compressor, rows, states)
            for worker in range(WORKERS):
                total, state, finite = got[worker][name][step]
                if name.startswith("topk ratio 1"):  # a ring adds in another order
                    np.testing.assert_allclose(total, expected[worker].total, rtol=1e-5, atol=1e-5)
                else:
                    np.testing.assert_array_equal(total, expected[worker].total)
                np.testing.assert_array_equal(finite, expected[worker].finite)
                np.testing.assert_array_equal(total, got[0][name][step][0])
                for a, b in zip(state, expected[worker].state, strict=True):
                    np.testing.assert_array_equal(a, b)
            states = [result.state for result in expected]
