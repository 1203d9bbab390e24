"""Learning works on real data: handwritten digits at five angles, the default stream, the settings of the demo.

How a long run ends depends on how the CPU rounds: a different CPU is like a different seed. So what is compared is the
mean over four seeds, and with a bound that no four seeds come near: at least six standard errors away from what is
measured, and on the other side of what is measured with the fault that the test is about. Both are in the comments.
"""

import clpu
import clpu.data
from clpu.testing import run_stream

SETTINGS = {"epochs": 10, "lr": 0.1, "seeds": range(4)}


def accuracy(agent, stream, name):
    task = next(task for task in clpu.data.tasks(stream) if task.name == name)
    return agent.accuracy(name, task.test.x, task.test.y).mean()


def played(requests, method, stream="rot-digits", **changes):
    tasks = {task.name: (task.train.x, task.train.y) for task in clpu.data.tasks(stream)}
    return run_stream(requests, method, tasks.__getitem__, **{**SETTINGS, **changes})


def test_a_single_task_is_learned():
    agent = played("1R", "seq", epochs=30)
    assert accuracy(agent, "rot-digits", "1") > 0.95  # 0.972 ± 0.001; with a tenth of the learning rate 0.875


def test_every_remembered_task_stays_above_90_percent_also_one_that_was_merged():
    agent = played("1R 2T 3T 4R 2R 3F 5T 5F", "clpu-der++")
    assert agent.tasks == {"1": "R", "2": "R", "4": "R"}
    for task in agent.tasks:
        assert accuracy(agent, "rot-digits", task) > 0.90, (
            task
        )  # from 0.934 ± 0.005; a tenth of the merge: 0.871 on task 2


def test_a_temporary_network_that_starts_from_the_main_one_has_a_head_start():
    agent = played("1R 4R 2T", "clpu-der++", epochs=2)
    assert accuracy(agent, "rot-digits", "2") > 0.80  # 0.893 ± 0.007; from scratch 0.690 ± 0.025


def test_rehearsal_protects_what_plain_descent_forgets():
    """On permuted digits, where tasks share nothing."""
    agent = played("1R 2R 3R", "clpu-der++", "perm-digits")
    assert accuracy(agent, "perm-digits", "1") > 0.86  # 0.932 ± 0.006; without rehearsal 0.746 ± 0.028
