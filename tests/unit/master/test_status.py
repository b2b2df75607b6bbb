"""The pace at which the status is made."""

from edl.master.status import Status


def test_a_status_that_is_dear_is_made_seldomer():
    cheap, dear = Status(0.0), Status(0.0)
    cheap.took(0.0, 0.001)
    dear.took(0.0, 0.05)  # a thousand workers
    times = [0.25 * n for n in range(1, 10)]

    assert times == [now for now in times if cheap.tick(now)]
    assert [1.0, 1.25] == [now for now in times if dear.tick(now)][:2]
    dear.took(10.0, 60.0)  # the machine slept
    assert [False, True] == [dear.tick(11.9), dear.tick(12.0)]
