"""One training on many processes, which `torchrun` starts.

`Sharded` splits the chains of a batch; `reduce` averages the gradients of processes that each have
chains of their own. Results do not depend on the number of processes, see `shards.py`.
"""

from mlmcgrad.distributed.reducing import reduce
from mlmcgrad.distributed.sharded import Sharded
from mlmcgrad.distributed.worlds import LostError, World, current, group

__all__ = ["LostError", "Sharded", "World", "current", "group", "reduce"]
