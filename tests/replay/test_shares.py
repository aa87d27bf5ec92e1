"""A rank's share: what it had where the gradient of the run is not finite."""

import torch

from hypocenter.replay.investigate import N_ELEMENTS, fits, shares


def parameter(grad):
    made = torch.nn.Parameter(torch.zeros(grad.shape, dtype=grad.dtype))
    made.grad = grad
    return made


def test_the_share_is_read_where_the_runs_gradient_is_bad():
    run = torch.tensor([[1.0, float("inf")], [float("-inf"), 2.0]], dtype=torch.float16)
    own = torch.tensor([[0.5, 40_000.0], [-50_000.0, 1.0]], dtype=torch.float64)

    (share,) = shares({"w": own}, [("w", parameter(run))])

    assert (share.param, share.dtype, share.limit, share.n, share.n_nonfinite) == ("w", "float16", 65504.0, 4, 2)
    assert (share.at, share.values, share.absmax) == ((1, 2), (40_000.0, -50_000.0), 50_000.0)
    assert fits(share)


def test_few_elements_are_kept_and_the_largest_parameters_come_first():
    bad = torch.full((100,), float("nan"), dtype=torch.float16)
    named = [("small", parameter(bad)), ("large", parameter(bad.clone()))]

    found = shares({"small": torch.ones(100).double(), "large": 1e5 * torch.ones(100).double()}, named)

    assert [share.param for share in found] == ["large", "small"]
    assert {len(share.at) for share in found} == {N_ELEMENTS}
    assert [fits(share) for share in found] == [False, True]


def test_what_has_no_gradient_here_has_no_share():
    free = torch.nn.Parameter(torch.zeros(2))

    assert shares({"w": torch.ones(2).double()}, [("w", free)]) == ()
    assert shares({}, [("w", parameter(torch.ones(2)))]) == ()
