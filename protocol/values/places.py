"""Texts that do not stay what they are where they go: in a partition column of Delta's.

Delta writes the values of partition columns as texts, and reads NULL where such a text is empty, or is the name that
Hive gives to the folder of NULLs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from protocol.values.types import Place
from protocol.values.value_array import refuse

if TYPE_CHECKING:
    from protocol.values.value_array import Bools, Unrepresentable

_NULLS: Final = pa.array(["", "__HIVE_DEFAULT_PARTITION__"])

AS_NULL: Final = "Delta keeps it as NULL in a partition column"


def held(values: pa.Array, place: Place, policy: Unrepresentable) -> pa.Array:
    """Values that stay what they are at their place; the others are NULL.

    Raises:
        UnheldValue: The policy is "error", and there is another one.
    """
    if place is not Place.PARTITION or not pa.types.is_string(values.type):
        return values
    refused: Bools = pc.is_in(values, _NULLS).to_numpy(zero_copy_only=False)
    nulls = refuse(refused, policy, lambda index: values[index].as_py(), AS_NULL)
    return values if nulls is None else pc.if_else(pa.array(nulls), pa.scalar(None, values.type), values)
