"""The embedding operators: forms, fits, and what can be said of their stability."""

from gce.operators.base import Form, Operator, Shape, residual_by_target
from gce.operators.forms import FORMS, DenseForm, HomForm, HomMeanForm, LocalForm, TensorForm, make_form

__all__ = [
    "FORMS",
    "DenseForm",
    "Form",
    "HomForm",
    "HomMeanForm",
    "LocalForm",
    "Operator",
    "Shape",
    "TensorForm",
    "make_form",
    "residual_by_target",
]
