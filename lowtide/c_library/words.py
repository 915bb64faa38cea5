"""The names of the user's program may stand in generated C as they are.

FREE     x, boxes, n_heads        their form: no prefix of the generated code, no capitals in front
TAKEN    int, sizes, threads      what C, C++ and the generated code call something else
"""

from __future__ import annotations

import re
from typing import Final

FREE: Final = re.compile(
    r"(?!(?:out|f)\d+$|(?:[a-z]|first|trip|lt|kernel)_|[A-Z]|model)[a-z]\w*", re.ASCII
)  # names that neither the C library nor the generated code uses
TAKEN: Final = re.compile(
    r"""sizes|weights|workspace|workspace_given|workspace_bytes|pool|pool_or_null |
    threads|offsets|needed|fault|status|slots|state|message|i|main|auto|break|case|char |
    const|continue|default|do|double|else|enum|extern|float|for|goto|if |
    inline|int|long|register|restrict|return|short|signed|sizeof|static|struct |
    switch|typedef|union|unsigned|void|volatile|while|bool|true|false|asm |
    typeof|linux|unix|and|bitand|bitor|catch|class|compl|constexpr|decltype |
    delete|dynamic_cast|explicit|export|friend|mutable|namespace|new|noexcept |
    not|operator|or|private|protected|public|static_assert|template|this |
    thread_local|throw|try|typeid|typename|using|virtual|xor|alignas|alignof |
    nullptr|concept|requires|wchar_t""",
    re.VERBOSE,
)
