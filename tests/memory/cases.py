"""The programs whose predicted peak is compared with the measured one: functions, then modules."""

from tests.memory import function_cases as function_cases
from tests.memory import result_cases as result_cases
from tests.memory.case_table import CASES, Case
from tests.memory.module_cases import Block, Unet

__all__ = ["CASES", "Block", "Case", "Unet"]
