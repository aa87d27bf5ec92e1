"""Steps and micro-batches."""

from hypocenter.tap.clock import Clock


def test_one_optimizer_one_step_per_update():
    clock = Clock()
    steps = []

    for _ in range(3):
        for _ in range(2):
            assert clock.step == len(steps)
            clock.end_microbatch()
        steps.append(clock.begin_update(1))
        clock.end_update()

    assert steps == [0, 1, 2]
    assert (clock.step, clock.microbatch, clock.batch) == (3, 0, 6)


def test_two_optimizers_that_take_turns_share_a_step():
    clock = Clock()

    steps = [clock.begin_update(optimizer) for optimizer in (1, 2, 1, 2, 1)]

    assert steps == [0, 0, 1, 1, 2]


def test_order_starts_again_with_each_step():
    clock = Clock()

    first = [clock.next_order(), clock.next_order()]
    clock.begin_update(1)
    clock.end_update()

    assert first == [1, 2]
    assert clock.next_order() == 1


def test_a_new_optimizer_comes_in_the_place_of_one_that_is_gone():
    clock = Clock()

    steps = [clock.begin_update(optimizer) for optimizer in (1, 2)]
    clock.forget(1)
    steps += [clock.begin_update(optimizer) for optimizer in (3, 2)]
    clock.forget(3)
    steps += [clock.begin_update(optimizer) for optimizer in (3, 3, 2)]

    assert steps == [0, 0, 1, 1, 2, 3, 3]


def test_one_that_is_new_may_replace_those_that_have_come_round_before():
    clock = Clock()

    def update(optimizer):
        clock.end_microbatch()
        may = clock.may_replace(optimizer)
        step = clock.begin_update(optimizer)
        clock.end_update()
        return step, may

    assert [update(1), update(2)] == [(0, False), (0, False)]  # nobody knows yet who comes round
    assert [update(1), update(3)] == [(1, False), (1, True)]
    assert (clock.has_come_round(1), clock.has_come_round(3)) == (True, False)
    assert not clock.may_replace(4)  # of the same backward
