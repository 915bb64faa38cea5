"""The programs whose predicted peak is compared with the measured one: functions, then modules."""

from tests.memory import function_cases as function_cases
from tests.memory import result_cases as result_cases
from tests.memory.case_table import CASES, Case
from tests.memory.module_cases import Block, Unet

__all__ = ["CASES", "LIBRARY_OPS", "Block", "Case", "Unet"]

# In which another library decides what is taken (`contract.py`), or PyTorch's op works in tables of
# its own that are not known to the byte.
LIBRARY_OPS = {
    "blurred", "convolutions", "convolved", "convolved_1d", "convolved_by_channels_last",
    "convolved_colours", "convolved_double", "convolved_double_at_points",
    "convolved_double_by_channels_last", "convolved_double_up", "convolved_half",
    "convolved_one_volume", "convolved_strided", "convolved_turned",
    "convolved_twice_with_channels_last", "convolved_up_in_halves",
    "convolved_up_with_channels_last", "frequencies", "frequencies_and_back", "groups of channels",
    "gru", "gru_of_little", "inverse", "larger", "larger_nearest", "least_squares", "lstm",
    "lstm_deep", "lstm_double", "lstm_of_one", "middle_columns", "own_vectors",
    "products_under_autocast", "sdpa",
    "singular", "singular_parts", "smaller", "solved", "solved_by_its_root", "transformer layer",
    "unet",
}  # fmt: skip
