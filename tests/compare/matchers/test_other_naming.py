"""The same network in two namings is the same, with a floor measured at every activation that both hold."""

from __future__ import annotations

import pytest
import torch
from networks import megatron_gpt
from networks.recorded import record

from hypocenter.compare.engine import compare_runs
from hypocenter.record.reader import open_run

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.night
def test_hugging_face_against_megatron(tmp_path):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip
    config.head_dim = 12
    ours = transformers.LlamaForCausalLM(config)
    theirs = megatron_gpt.GPTModel(config)
    theirs.load_state_dict(megatron_gpt.converted({k: v.clone() for k, v in ours.state_dict().items()}, config))
    record(ours, lambda ids: ours(input_ids=ids, labels=ids).loss, tmp_path / "ours", calibrate="every=1")
    record(theirs, theirs.loss, tmp_path / "theirs")

    found = compare_runs(open_run(tmp_path / "ours"), open_run(tmp_path / "theirs"))

    assert found.status == "same", (found.sentence, found.notes)
    copies = [row for row in found.rows if row.pair.layout.kind == "copies" and row.pair.baseline[0].phase == "forward"]
    assert {"core_attention", "linear_qkv"} <= {s.site.rpartition(".")[2] for r in copies for s in r.pair.candidate}
    assert {row.floor.source for row in copies} == {"calibration"}
    given, taken = (
        floors(found, f"model.layers.1.{spot}") for spot in ("post_attention_layernorm out[0]", "mlp.gate_proj in[0]")
    )
    assert given == taken  # one tensor, measured by its sketch at both


def floors(found, spot):
    rows = [row for row in found.rows if f"{row.pair.baseline[0].site} {row.pair.baseline[0].port}" == spot]
    return [row.floor for row in rows]
