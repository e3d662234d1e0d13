"""The embedding operators: forms, fits, and what can be said of their stability."""

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
from gce.operators.hyper import HomMeanHyperForm
from gce.operators.paired import HomAverageForm, HomEdgesForm, HomMeanEdgesForm, HomMeanPairsForm, HomPairsForm

__all__ = [
    "FORMS",
    "PAPER_FORMS",
    "Blocks",
    "DenseForm",
    "Form",
    "HomAverageForm",
    "HomEdgesForm",
    "HomForm",
    "HomMeanEdgesForm",
    "HomMeanForm",
    "HomMeanHyperForm",
    "HomMeanPairsForm",
    "HomPairsForm",
    "LocalForm",
    "Operator",
    "Shape",
    "TensorForm",
    "make_form",
    "register_form",
    "residual_by_target",
]
