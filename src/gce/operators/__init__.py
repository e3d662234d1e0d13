"""The embedding operators: forms, fits, and what can be said of their stability."""

from gce.operators import paired as _paired  # registers its forms
from gce.operators.forms import (
    FORMS,
    PAPER_FORMS,
    Blocks,
    DenseForm,
    Form,
    HomForm,
    HomMeanForm,
    LocalForm,
    Operator,
    Shape,
    TensorForm,
    make_form,
    register_form,
    residual_by_target,
)

__all__ = [
    "FORMS",
    "PAPER_FORMS",
    "Blocks",
    "DenseForm",
    "Form",
    "HomForm",
    "HomMeanForm",
    "LocalForm",
    "Operator",
    "Shape",
    "TensorForm",
    "make_form",
    "register_form",
    "residual_by_target",
]
