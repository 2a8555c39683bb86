"""Public path of :mod:`ggufx.requantize.plan`: sizes of a model under each mix, before quantizing."""

from .callable_module import make_callable
from .requantize.plan import LADDER, Group, MixPlan, Plan, plan

__all__ = ["LADDER", "Group", "MixPlan", "Plan", "plan"]

make_callable(__name__)
