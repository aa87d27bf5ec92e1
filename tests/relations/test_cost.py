"""What all relations together cost: at most twelve forwards of a healthy model."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from bench.relations.families import FAMILIES, batch_of
from hypocenter.testing import RelationBroken, check_relations

MOST = 12
N_IMAGES, N_BOXES, N_CLASSES = 5, 2, 4


class Detector(nn.Module):
    """Boxes and classes of so many things in each picture, compared with a list of what is in it."""

    def __init__(self, sees=None):
        super().__init__()
        self.body = nn.Linear(12, 16)
        self.boxes, self.classes = nn.Linear(16, 4 * N_BOXES), nn.Linear(16, N_CLASSES * N_BOXES)
        self.sees = sees

    def forward(self, pictures, labels):
        seen = self.body(pictures).relu()
        if self.sees is not None:
            picture, key = self.sees
            seen = seen + labels[picture][key].flatten()[0]
        boxes, classes = self.boxes(seen).unflatten(1, (N_BOXES, 4)), self.classes(seen).unflatten(1, (N_BOXES, -1))
        loss = sum(
            functional.l1_loss(boxes[i], each["boxes"]) + functional.cross_entropy(classes[i], each["classes"])
            for i, each in enumerate(labels)
        )
        return {"loss": loss, "classes": classes}


def detected(sees=None):
    torch.manual_seed(0)
    labels = [
        {"boxes": torch.rand(N_BOXES, 4), "classes": torch.randperm(N_CLASSES)[:N_BOXES]} for _ in range(N_IMAGES)
    ]
    return check_relations(Detector(sees), {"pictures": torch.randn(N_IMAGES, 12), "labels": labels})


@pytest.mark.parametrize("name", ["gpt2", "t5", "bart", "wav2vec2", "speech2text"])
@pytest.mark.parametrize("is_training", [True, False])
def test_families(name, is_training):
    recipe = FAMILIES[name]

    looked = check_relations(recipe.make(recipe.attention[0]).train(is_training), batch_of(recipe))

    assert looked.broken == []
    assert looked.n_forwards <= MOST


@pytest.mark.parametrize(("name", "module"), [("switch", "mlp.router"), ("mobilebert", "mobilebert.embeddings")])
def test_families_of_which_a_note_or_an_exception_names_a_module(name, module):
    recipe = FAMILIES[name]

    looked = check_relations(recipe.make(recipe.attention[0]).train(), batch_of(recipe))

    assert any(module in text for text in (*looked.notes, *(each.module for each in looked.broken)))
    assert looked.n_forwards <= MOST


def test_many_labels_cost_one_forward():
    looked = detected()

    assert "label" in looked.held
    assert looked.n_forwards <= MOST


def test_the_one_of_many_labels_that_is_seen_is_named():
    with pytest.raises(RelationBroken, match="label"):
        detected(sees=(3, "boxes"))
