"""One training on many processes, started by `torchrun`.

`Sharded` splits the chains of a batch between processes; `reduce` averages the gradients of
processes that have chains of their own. Results do not depend on the number of processes.
"""

from mlmcgrad.distributed.shards import Sharded
from mlmcgrad.distributed.world import LostError, World, current, group, reduce

__all__ = ["LostError", "Sharded", "World", "current", "group", "reduce"]
