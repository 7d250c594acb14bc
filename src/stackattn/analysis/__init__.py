"""Looking at what a stack did.

Who lives here: `traces` watches the stacks of a model at work, `contents` computes what lies on them, `real_stack`
compares them with the stack that a person would program, and `quality` does so for runs; `attention_map`, `figures`,
`curves` and `demo` draw for print (they need the extra `plot`, imported when drawing), `drawings` all of a run;
`folders` reads run folders, `study` looks at their models and `strings` at single strings, and `report` makes the HTML
page of `page/`.
"""

from .attention_map import attention_map
from .real_stack import Agreement, agreement, agreements, derivation_tops, real_tops
from .traces import NondeterministicTrace, StackTrace, SuperpositionTrace, watch_stacks

__all__ = [
    "Agreement",
    "NondeterministicTrace",
    "StackTrace",
    "SuperpositionTrace",
    "agreement",
    "agreements",
    "attention_map",
    "derivation_tops",
    "real_tops",
    "watch_stacks",
]
