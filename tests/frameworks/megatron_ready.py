"""Megatron-Core, imported so that it runs on the CPU: the shim goes before, and once more over what was imported."""
# ruff: noqa: E402, F401

import megatron_cpu_shim

megatron_cpu_shim.install()

import megatron.core.distributed
import megatron.core.models.gpt.gpt_layer_specs
import megatron.core.models.gpt.gpt_model
import megatron.core.optimizer
import megatron.core.pipeline_parallel.schedules

megatron_cpu_shim.after_import()
