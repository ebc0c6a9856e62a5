"""The scenarios, by name."""

from .base import Scenario
from .copy import Copy
from .drain import Drain, IoDrain
from .lag import Lag
from .large import Large
from .sustained import Sustained

SCENARIOS: dict[str, type[Scenario]] = {
    "drain": Drain,
    "sustained": Sustained,
    "io-drain": IoDrain,
    "large": Large,
    "copy": Copy,
    "lag": Lag,
}
