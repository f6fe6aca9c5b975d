"""What a message has in it when it is taken apart again."""

import torch

from mlmcgrad.distributed.post import packed, unpacked
from tests.chains import rng

CPU = torch.device("cpu")


def test_tensors_of_all_kinds_come_back() -> None:
    wide = torch.randn(3, 4, generator=rng())
    message = (
        wide[:, 1:3],  # not contiguous
        wide.double().requires_grad_(),
        wide.bfloat16(),
        torch.tensor([10, -(2**60)]),  # 10 is the end of a line
        torch.tensor(True),
    )
    found = unpacked(packed(message).numpy().tobytes(), CPU)
    assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in message]
    assert all(map(torch.equal, found, message))
    assert not any(tensor.requires_grad for tensor in found)
    found[0].zero_()  # it may be written to
    assert torch.equal(found[1], message[1])


def test_nothing_has_no_bytes() -> None:
    assert packed(None).tolist() == []
