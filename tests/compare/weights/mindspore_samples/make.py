"""Writes the samples of this folder with MindSpore itself (2.10, CPU), and what is in them: truth.json.

    python make.py

`ranks` is a checkpoint that MindSpore cut for four devices by a strategy: rows, columns, both, not at all, by a
parallel optimizer, and one dimension by two of the devices' dimensions.
"""

import json
import shutil
import stat
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.train.node_strategy_pb2 import ParallelStrategyMap

HERE = Path(__file__).parent
KEY = b"0123456789abcdef"


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(6, 4)
        self.norm = nn.LayerNorm((4,))
        self.fc = nn.Dense(4, 3)


def truth_of(path, format="ckpt"):
    found = {}
    for name, value in ms.load_checkpoint(str(path), format=format).items():
        if isinstance(value, str):
            found[name] = value
        else:
            found[name] = [str(value.dtype), list(value.shape), value.get_bytes().hex()]
    return found


def layout(strategy, name, devices, maps, step=0, size=0):
    item = strategy.parallel_layout_item.add()
    item.param_name = name
    layouts = item.parallel_layouts
    layouts.dev_matrix.add().dim.extend(devices)
    for one in maps:
        layouts.tensor_map.add().dim.extend(one)
    layouts.param_split_shape.add()
    layouts.indices_offset.add()
    layouts.field, layouts.opt_weight_shard_step, layouts.opt_weight_shard_size = 0, step, size


def main():
    np.random.seed(0)
    ms.set_seed(0)
    truth = {}
    net = Net()
    entries = [{"name": p.name, "data": p} for p in net.get_parameters()]
    entries.append({"name": "half", "data": Tensor(np.random.randn(2, 3), ms.bfloat16)})
    entries.append({"name": "one", "data": Tensor(np.float32(1.5))})
    entries.append({"name": "ids", "data": Tensor(np.array([1, -2], np.int64))})
    entries.append({"name": "adam_m.fc.weight", "data": Tensor(np.zeros((3, 4), np.float32))})
    more = {"epoch_num": 3, "note": "text", "flag": True}
    for name, options in (("plain", {"append_dict": more}), ("crc", {"crc_check": True})):
        ms.save_checkpoint(entries, str(HERE / f"{name}.ckpt"), **options)
        truth[f"{name}.ckpt"] = truth_of(HERE / f"{name}.ckpt")
    ms.save_checkpoint(entries, str(HERE / "plain.safetensors"), format="safetensors")
    truth["plain.safetensors"] = truth_of(HERE / "plain.safetensors", "safetensors")
    for mode in ("AES-GCM", "AES-CBC", "SM4-CBC"):
        ms.save_checkpoint(entries[:2], str(HERE / f"{mode}.ckpt"), enc_key=KEY, enc_mode=mode)
    truth["ranks"] = ranks()
    (HERE / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    for file in HERE.rglob("*.*"):
        file.chmod(stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH)


def ranks():
    whole = HERE / "whole"
    (whole / "rank_0").mkdir(parents=True)
    strategy = ParallelStrategyMap(current_stage=0)
    item = strategy.parallel_strategy_item.add()
    item.node_name = "MatMul-0"
    item.parallel_strategys.stage = 0
    layout(strategy, "rows.weight", [2, 2], [[0, -1]])
    layout(strategy, "columns.weight", [2, 2], [[-1, 0]])
    layout(strategy, "both.weight", [2, 2], [[1, 0]])
    layout(strategy, "none.gamma", [2, 2], [[-1]])
    layout(strategy, "optimizer.weight", [2, 2], [[0, -1]], step=2, size=2)
    layout(strategy, "optimizer.bias", [4], [[-1]], step=1, size=-1)
    layout(strategy, "nested.weight", [2, 2], [[1, 0], [-1]])
    layout(strategy, "nested.bias", [2, 2], [[1, 0], []])  # of one dimension: MindSpore adds an empty map
    (HERE / "strategy").mkdir(exist_ok=True)
    (HERE / "strategy" / "ckpt_strategy_rank_0.ckpt").write_bytes(strategy.SerializeToString())
    names = [item.param_name for item in strategy.parallel_layout_item]
    entries = [
        {"name": name, "data": Tensor(np.random.randn(*((4, 4) if "weight" in name else (4,))).astype(np.float32))}
        for name in names
    ]
    entries.append({"name": "global_step", "data": Tensor(np.int32(7))})
    ms.save_checkpoint(entries, str(whole / "rank_0" / "net.ckpt"))
    found = truth_of(whole / "rank_0" / "net.ckpt")
    shutil.rmtree(HERE / "ranks", ignore_errors=True)
    (HERE / "ranks").mkdir()
    ms.transform_checkpoints(
        str(whole), str(HERE / "ranks"), "net_", None, str(HERE / "strategy" / "ckpt_strategy_rank_0.ckpt")
    )
    shutil.rmtree(whole)
    return found


main()
